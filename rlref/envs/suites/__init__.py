"""Environments of other suites, by ids such as `brax:ant`. Nothing of a suite is imported before it is asked for."""

import contextlib
import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, NamedTuple

from rlref.errors import UsageError, in_a_line, nearest


class Suite(NamedTuple):
    """Where a suite comes from."""

    package: str
    """what Python imports"""
    requirement: str
    """what pip installs"""
    about: str


SUITES = {
    "brax": Suite("brax", "brax>=0.14.2", "continuous control"),
    "craftax": Suite("craftax", "craftax>=1.6.1", "open-ended worlds, Crafter's and NetHack's kind"),
    "gymnasium": Suite("gymnasium", "gymnasium[mujoco]>=1.3", "on the host: MuJoCo, and what you have registered"),
    "jumanji": Suite("jumanji", "jumanji>=1.1.2", "puzzles, packing, routing"),
    "navix": Suite("navix", "navix>=0.7.4,<4", "MiniGrid"),
    "pgx": Suite("pgx", "pgx>=2.6", "MinAtar, and 2048"),
    "playground": Suite("mujoco_playground", "playground>=0.2", "the DeepMind Control Suite and robots, on MJX"),
    "xminigrid": Suite("xminigrid", "xminigrid>=0.9.3", "XLand-MiniGrid and MiniGrid"),
}
"""Beside gymnax's own, whose ids need no prefix."""


def is_installed(suite: str) -> bool:
    """Whether the package of a suite of `SUITES` is there; it is not imported."""
    return importlib.util.find_spec(SUITES[suite].package) is not None


def module_of(suite: str) -> ModuleType:
    """A suite's file beside this one. Raises UsageError if its package is missing, or cannot be imported."""
    requirement = SUITES[suite].requirement
    if not is_installed(suite):
        raise UsageError(f"{suite} is not installed: pip install '{requirement}'")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # some say hello, or what they miss: not among results
            return importlib.import_module(f"{__name__}.{suite}")
    except Exception as error:  # its own code, or one of what it needs
        raise UsageError(f"{suite} cannot be imported: {in_a_line(error)}; pip install '{requirement}'") from error


def look_here() -> None:
    """Let Python find the user's own modules in the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def make(suite: str, name: str) -> Any:
    """The environment of that name. Raises UsageError if there is none, or it cannot be made here."""
    module = module_of(suite)
    if not name:
        raise UsageError(
            f"{suite} is a suite: say which of its environments, {suite}:NAME; `rlref envs {suite}` lists them"
        )
    if suite == "gymnasium" and ":" in name:
        name = module.registered(name)
    if name not in (names := module.names()):
        why = getattr(module, "why_not", lambda _: "")(name)
        near = f": {why}." if why else f".{nearest(name, names)}"
        raise UsageError(f"{suite} has no environment {name!r}{near} `rlref envs {suite}` lists them")
    env = made(module, f"{suite}:{name}", name)
    env.id = f"{suite}:{name}"
    return env


def made(module: ModuleType, env_id: str, *arguments: Any) -> Any:
    """What a suite's file makes. Raises UsageError, with the id, if it cannot."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return module.make(*arguments)
    except UsageError:
        raise
    except Exception as error:  # some download data when they are made; of others it is the user's own code
        raise UsageError(f"{env_id} cannot be made here: {in_a_line(error)}") from error


def adapted(env: Any, where: str) -> Any:
    """`env`, or what makes one of gymnasium's trainable, where it is one that its id or a function makes again.

    Raises UsageError for a raw environment of a suite, which has another interface; `where` is where it comes from.
    """
    packages = [kind.__module__.partition(".")[0] for kind in type(env).__mro__]
    found = [suite for suite, about in SUITES.items() if about.package in packages]
    if not found or hasattr(env, "default_params"):
        return env
    suite = found[0]
    if suite == "gymnasium" and (spec := spec_of(env)) is not None:
        return made(module_of(suite), f"{where}, {spec.id},", spec.id, spec)
    how = f"env_id={suite + ':NAME'!r}; `rlref envs {suite}` lists them"
    if suite == "gymnasium":
        how = "register it, or give package.module:make_env, a function that makes it, as env_id"
    raise UsageError(f"{where} is a {type(env).__name__} of {SUITES[suite].package} as it is: {how}")


def spec_of(env: Any) -> Any:
    """By what gymnasium makes an environment like this one; None where it cannot."""
    try:
        spec = env.spec
    except Exception:  # of a wrapper that does not keep how it was made
        return None
    several = hasattr(env, "num_envs")
    lost = any(x.kwargs is None for x in getattr(spec, "additional_wrappers", ()))  # such a wrapper in between
    return None if several or lost else spec
