"""What becomes of a probe where an agent's Config lacks a setting that the probe would set.

None is needed. Without a length, `update` is called as often as the probe needs. Without `learning_rate` the agent's
own is used, for longer. Without `gamma` only probes are trained whose answer does not depend on it. A setting that a
probe is about has to be there, but for one that merely brings it there faster.
"""

from types import ModuleType
from typing import Any

import numpy as np

from probes.environments import Tables, Tabular, Target
from probes.ladder import Probe
from probes.oracles.base import knows_masks
from rlref.contract import GRADIENT

LENGTH = {**dict.fromkeys(GRADIENT, "total_timesteps"), "cem": "num_generations"}
BATCH = {"ppo": ("num_envs", "num_steps"), "dqn": ("cycles_per_update", "train_frequency")}
"""kind of agent -> the settings whose product is the environment steps of one update"""
WAYS = ("updates", "learning_rate", "gae_lambda")
"""settings by which probes get to their answer, which is the same with others"""
PATIENCE = 10
"""how many times as long to train at an agent's own learning rate: rates in use are below those that probes set"""


def depends_on_gamma(probe: Probe) -> bool:
    """Whether a probe's answer does; not where every step ends an episode by terminating it."""
    params = probe.case(0).params
    return isinstance(params, Tables) and not bool(np.all(params.terminated))


def why_not(probe: Probe, kind: str, fields: set[str], module: ModuleType, usual: float) -> str:
    """Why an agent with these settings cannot be trained on a probe; '' if it can. `usual`: the usual learning rate."""
    if kind in GRADIENT and "gamma" not in fields and depends_on_gamma(probe):
        return "its Config lacks gamma, on which the answer depends"
    params = probe.case(0).params
    if isinstance(params, Tables) and params.action_mask and not knows_masks(module):
        return "it knows no action_mask"
    own = probe.settings.get(kind, {})
    lacking = [name for name in own if name not in {*fields, *WAYS}]
    if lacking == ["num_steps"]:  # to average over more steps: its own may be as many
        agent = made(probe, kind, module, {})
        if agent is not None and agent.steps_per_update >= own["num_steps"] * 7:
            lacking = []
    if "learning_rate" not in fields and own.get("learning_rate", 0) > usual:
        lacking.append("learning_rate")  # its answer is too far away
    return f"its Config lacks {', '.join(lacking)}, which the probe has to set" if lacking else ""


def made(probe: Probe, kind: str, module: ModuleType, settings: dict[str, Any]) -> Any:
    """The agent for a probe; None if its `make` raises, which is told elsewhere."""
    params = probe.case(0, kind).params
    env = Tabular(params) if isinstance(params, Tables) else Target(params)
    try:
        return module.make(module.Config(**settings), env, params)
    except Exception:  # the user's own code: anything can come
        return None


def with_length(
    settings: dict[str, Any], probe: Probe, kind: str, module: ModuleType, fields: set[str], updates: int
) -> dict[str, Any]:
    """The settings, for so many updates, of an agent whose steps of one update may be its own: it is asked for them."""
    length = LENGTH[kind]
    if kind not in BATCH or fields.issuperset(BATCH[kind]):
        return settings
    settings = {name: x for name, x in settings.items() if name != "num_minibatches"}  # its own divide its own batch
    if length not in settings:
        return settings
    agent = made(probe, kind, module, settings | {length: 10**8})  # more than any batch
    if agent is None or agent.num_updates == 1:
        return settings
    return settings | {length: updates * agent.steps_per_update}


def steps_of(agent: Any, kind: str, fields: set[str], updates: int) -> np.ndarray:
    """The step of each update `[updates]` of a training; of an agent whose Config has a length, its own."""
    count = agent.num_updates
    # One update that is a whole training stays one.
    if LENGTH[kind] in fields or count == 1:
        return np.arange(count)
    # Longer than it means to train, it is led slower through its schedules, and never behind their end.
    return np.arange(updates) if updates <= count else np.arange(updates) * count // updates
