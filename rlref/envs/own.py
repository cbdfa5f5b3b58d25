"""A user's own environment: what `package.module:make_env` names."""

import importlib
import os
import sys
from typing import Any

from rlref.envs import suites
from rlref.envs.interface import check_complete
from rlref.errors import UsageError, in_a_line


def own_env(env_id: str) -> tuple[Any, Any]:
    """The environment that a function gives, and its parameters. Raises UsageError where it gives none."""
    module_name, _, attribute = env_id.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), attribute)
        made = function()
    except Exception as error:  # the user's own code: anything can come
        raise UsageError(f"{env_id} does not give an environment: {in_a_line(error)}") from error
    if "gymnasium" in sys.modules and isinstance(made, sys.modules["gymnasium"].Env):
        made = suites.module_of("gymnasium").make(env_id, function)
        made.id = env_id
    env, params = made if isinstance(made, tuple) else (made, None)
    return check_complete(env, env_id), env.default_params if params is None else params
