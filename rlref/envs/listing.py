"""The list of `rlref envs`: each environment with its spaces and time limit."""

from collections.abc import Sequence
from typing import NamedTuple

from rlref.envs import suites
from rlref.envs.gymnax_envs import NEEDS_DOWNLOAD, describe, imported_gymnax
from rlref.envs.ids import OWN, make_env
from rlref.errors import UsageError


class EnvRow(NamedTuple):
    """One line of `rlref envs`."""

    env_id: str
    observations: str
    actions: str
    time_limit: int | None
    note: str


def list_envs(suite: str = "gymnax", words: Sequence[str] = (), made: int | None = None) -> list[EnvRow]:
    """A suite's environments; those whose id contains one of the words, if any are given, in upper or lower case.

    With spaces and time limit (None where there is none), unless they are another suite's and more than `made`. Raises
    UsageError if the suite is not installed, or nothing fits.
    """
    if suite == "gymnax":
        ids = {name: name for name in (*imported_gymnax().registered_envs, *OWN)}
    else:
        ids = {name: f"{suite}:{name}" for name in suites.module_of(suite).names()}
    found = [x for name, x in ids.items() if not words or any(word.lower() in name.lower() for word in words)]
    if not found:
        raise UsageError(f"no environment of {suite} has {' or '.join(words)} in its id; without words all are listed")
    few = suite == "gymnax" or made is None or len(found) <= made
    return [row_of(env_id) if few else EnvRow(env_id, "", "", None, "") for env_id in found]


def row_of(env_id: str) -> EnvRow:
    """One environment's line."""
    if env_id in NEEDS_DOWNLOAD:
        return EnvRow(env_id, "", "", None, "downloads data when made")
    try:
        env, params = make_env(env_id)
    except UsageError as error:
        return EnvRow(env_id, "", "", None, str(error))
    spaces = describe(env.observation_space(params)), describe(env.action_space(params))
    limit = getattr(params, "max_steps_in_episode", None)
    return EnvRow(env_id, *spaces, limit if limit is None else int(limit), "")  # gymnax's bandit has 100.0
