"""A user's own environment: what `package.module:make_env` names."""

import importlib
import importlib.util
import sys
from typing import Any

from rlref.envs import suites
from rlref.envs.interface import check_complete
from rlref.errors import UsageError, in_a_line, nearest


def own_env(env_id: str) -> tuple[Any, Any]:
    """The environment that a function gives, and its parameters. Raises UsageError where it gives none."""
    module_name, _, attribute = env_id.partition(":")
    suites.look_here()
    if not module_name or not attribute:
        raise UsageError(f"{env_id!r} names no environment: one is suite:name, or package.module:function of your own")
    try:
        if importlib.util.find_spec(module_name.partition(".")[0]) is None:
            near = nearest(module_name, suites.SUITES)
            said = f"there is no suite and no Python module {module_name!r}.{near} `rlref envs` lists suites"
            raise UsageError(said) from ModuleNotFoundError(module_name)
        function = getattr(importlib.import_module(module_name), attribute)
        made = function()
    except UsageError:
        raise
    except Exception as error:  # the user's own code: anything can come
        raise UsageError(f"{env_id} does not give an environment: {in_a_line(error)}") from error
    if "gymnasium" in sys.modules and isinstance(made, sys.modules["gymnasium"].Env):
        made = suites.made(suites.module_of("gymnasium"), env_id, env_id, function)
    env, params = made if isinstance(made, tuple) else (made, None)
    return check_complete(env, env_id), env.default_params if params is None else params
