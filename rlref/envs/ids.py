"""From an environment's id to the environment and its parameters."""

import importlib
from types import ModuleType
from typing import Any

from rlref.envs import suites
from rlref.envs.gymnax_envs import imported_gymnax
from rlref.envs.interface import check_complete
from rlref.envs.own import own_env
from rlref.errors import UsageError, in_a_line, nearest

OWN = {"PositionOnlyCartPole-v1": "position_only_cartpole"}
"""rlref's own environments, beside gymnax's: id -> the function in partial.py"""
COUNTED = {
    "stacked": "its last observations, as in stacked:4:PositionOnlyCartPole-v1",
    "pool": "start states of each environment, as in pool:16:craftax:Craftax-Classic-Symbolic-v1",
}
"""What is put around an environment, with a number."""
MOST = 1_000_000  # of these


def on_gymnax(name: str) -> ModuleType:
    """`partial` or `suites.pool`, which import gymnax."""
    imported_gymnax()
    return importlib.import_module(f"rlref.envs.{name}")


def with_pool(env_id: str, num_envs: int) -> str:
    """The id of an environment that starts from a pool, of a size for so many at a time. Raises UsageError."""
    env, _ = make_env(env_id)
    return f"pool:{on_gymnax('suites.pool').size(env, num_envs)}:{env_id}"


def make_env(env_id: str) -> tuple[Any, Any]:
    """The environment that `env_id` names, and its parameters.

    `env_id` is a gymnax id, also with `gymnax:` before it, or one of `OWN`; `suite:name` of another suite, such
    as `brax:ant`; `package.module:function` of a function that returns an environment of gymnax >= 1.0, or a pair of it
    and its parameters, or one of gymnasium; the current folder is importable; or `stacked:K:` and one of these, its
    last K observations at a time; or `pool:K:` and one of another suite, which starts its episodes from K states.
    Raises UsageError.
    """
    source, colon, name = env_id.partition(":")
    if source in suites.SUITES:
        env = suites.make(source, name)
        return env, env.default_params
    if source in COUNTED:
        count, _, inner = name.partition(":")
        if not (count.isdecimal() and len(count) <= len(str(MOST)) and 1 <= int(count) <= MOST and inner):
            raise UsageError(f"{env_id!r} says not how many, or of what: {COUNTED[source]}; at most {MOST:,}")
        env, params = make_env(inner)
        around = on_gymnax("partial").Stacked if source == "stacked" else on_gymnax("suites.pool").Pooled
        return around(env, int(count)), params
    if colon and source != "gymnax":
        return own_env(env_id)
    env_id = name or env_id
    if env_id in OWN:
        return getattr(on_gymnax("partial"), OWN[env_id])()
    gymnax = imported_gymnax()
    if env_id not in gymnax.registered_envs:
        raise UsageError(
            f"there is no environment {env_id!r}.{nearest(env_id, [*gymnax.registered_envs, *OWN])} "
            "`rlref envs` lists them; your own is package.module:make_env"
        )
    try:
        return gymnax.make(env_id)
    except Exception as error:  # one of them downloads data when it is made
        raise UsageError(f"{env_id} cannot be made here: {in_a_line(error)}") from error


def split_pool(env_id: str) -> tuple[str, str]:
    """How many starts its pool has, in digits, and the id of what that is around; of any other id "" and the id."""
    source, _, rest = env_id.partition(":")
    count, colon, inner = rest.partition(":")
    return (count, inner) if source == "pool" and colon else ("", env_id)


def without_pool(env_id: str) -> str:
    """The id of what a pool is around; any other as it is."""
    return split_pool(env_id)[1]


def resolved(env_id: str, env: Any = None, env_params: Any = None) -> tuple[Any, Any]:
    """`env`, or without one what `env_id` names; with `env_params`, or without them its defaults. Raises UsageError."""
    if env is None:
        env, default = make_env(env_id)
    else:
        env = check_complete(env, "env")
        default = env.default_params
    return env, default if env_params is None else env_params


def type_of(env: Any) -> str:
    """The name of its class; of what rlref put around another, with that one's."""
    name = type(env).__name__
    return f"{name}({type_of(env.inner)})" if hasattr(env, "without_pool") else name


def name_of(env: Any) -> str:
    """What an environment that is given as an object is called."""
    return str(getattr(env, "name", type(env).__name__))
