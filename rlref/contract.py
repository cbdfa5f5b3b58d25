"""The agent contract: what a Python file needs to be an agent. Nothing else of an agent is used anywhere.

    class Config                      # frozen flax.struct dataclass; float fields are leaves (traceable), others static
    def make(config, env=None, env_params=None) -> Agent
    class Agent(NamedTuple):
        init:   (key) -> state                        # one seed
        update: (state, step) -> (state, diagnostics) # step: int32 index of the update, never batched over seeds;
                                                      # `env_steps` is one of the diagnostics, each of them a number
        policy: (state, obs) -> probabilities [A] (DQN, CEM: one-hot of the greedy action), for several
                                                      # choices (MultiDiscrete) those of each, one after the other;
                                                      # for a Box mean [D] and std [D] (CEM: 0), not clipped
        value:  (state, obs) -> V; Q [A]; or None     # both take ONE raw observation
        num_updates: int
        steps_per_update: int                         # environment steps of one update of one seed (CEM: at most)
    def train(config, key, env=None, env_params=None) -> (state, diagnostics [num_updates])

An agent may have one field more in its Agent, `memory0`: what it remembers before an episode's first step. Where it is
not None, `policy` and `value` take what the policy was shown and remembers, and give what it remembers then:

        memory0: an array, or a tree of arrays
        policy: (state, memory, obs, last_action, last_reward, reset) -> as above, memory
        value:  the same -> V, memory

`last_action` is as the environment took it; `reset` is whether `obs` is an episode's first: then the memory, and the
last action and reward, which are of another episode or 0, must not be looked at.

Beside each setting of its Config an agent may say more, as field metadata: `interval`, the numbers that `make` takes
(`[0, 1]`, `(0, inf)`), and `search`, where `rlref sweep` draws it from (lowest, highest, scale). `update` must not keep
anything outside its state: what is not in there is not in a checkpoint.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import symtable
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rlref.errors import UsageError, entries_of, in_a_line, line_of, nearest, nodes_of

NAMES = ("ppo", "dqn", "cem")
"""What kinds of agents are called: the one of rlref's own, without a memory, that an agent works like.

ppo: it has a policy and learns V. dqn: its policy is greedy in the action values Q. cem: it has no values.
"""
AGENTS = (*NAMES, "ppo_rnn")
"""rlref's own agents."""
PPO, DQN, CEM = ("ppo",), ("dqn",), ("cem",)
RECURRENT = ("ppo_rnn",)
GRADIENT, ALL = PPO + DQN, PPO + DQN + CEM
CONTRACT = {
    "Config": "the settings, a frozen flax.struct dataclass",
    "make": "make(config, env=None, env_params=None) -> Agent",
    "Agent": "a NamedTuple of init, update, policy, value, num_updates and steps_per_update",
    "train": "train(config, key, env=None, env_params=None) -> (state, diagnostics)",
}
FIELDS = ("init", "update", "policy", "value", "num_updates", "steps_per_update")


def remembers(agent: Any) -> bool:
    """Whether what `make` gave has a memory, which its `policy` and `value` take and give."""
    return getattr(agent, "memory0", None) is not None


def load_agent(agent: str | os.PathLike[str] | ModuleType) -> ModuleType:
    """The module of `agent`: a name out of AGENTS, the path of a Python file that keeps the contract, or such a module.

    A file finds modules beside it, as a script does, but where something is installed under their name.

    Raises UsageError for an unknown name, a missing file, a file that cannot be imported, or one without the contract.
    """
    if isinstance(agent, ModuleType):
        return check_contract(agent, agent.__name__)
    agent = os.fspath(agent)
    if agent in AGENTS:
        return importlib.import_module(f"rlref.{agent}")
    path = Path(agent)
    if path.suffix != ".py":
        raise UsageError(
            f"no agent is named {agent!r}; there is {', '.join(AGENTS)}, or give a file such as ./my_ppo.py."
            + nearest(agent, AGENTS)
        )
    if not path.is_file():
        raise UsageError(f"{agent} is a folder, no file" if path.is_dir() else f"there is no file {agent}")
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's own code: anything can come
        if previous is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = previous
        besides = f"; besides, it defines no {', '.join(names)}" if (names := undefined_in(path)) else ""
        raise UsageError(f"{agent}, line {line_of(error, path) or '?'}: {in_a_line(error)}{besides}") from error
    return check_contract(module, agent)


def check_contract(module: ModuleType, agent: str) -> ModuleType:
    """`module`, if it keeps the contract; see `load_agent`. Nothing of it is called but its Config."""
    if lacking := missing_in(module):
        raise no_agent(agent, lacking)
    return module


def missing_in(module: ModuleType) -> list[str]:
    """What a module lacks to be an agent, each in a few words."""
    told = {name: what if what.startswith(name) else f"{name} ({what})" for name, what in CONTRACT.items()}
    missing = [what for name, what in told.items() if not hasattr(module, name)]
    if hasattr(module, "Agent"):
        missing += [f"Agent.{name}" for name in FIELDS if name not in getattr(module.Agent, "_fields", ())]
    if hasattr(module, "make") and not takes_positional(module.make, 3):
        missing.append(f"a make that is {CONTRACT['make']}")
    if hasattr(module, "Config") and not (isinstance(module.Config, type) and dataclasses.is_dataclass(module.Config)):
        missing.append("a Config that is a frozen flax.struct dataclass")
    elif hasattr(module, "Config"):
        fields = [f for f in dataclasses.fields(module.Config) if f.init]
        unset = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
        missing += [f"a default of Config.{name}" for name in unset]
        if not unset and not is_tree(module.Config):
            missing.append("a Config that jax sees as a tree, a flax.struct dataclass")
    return missing


def no_agent(agent: str, lacking: Sequence[str]) -> UsageError:
    return UsageError(f"{agent} is no agent: it lacks {', '.join(lacking)}; see the contract in rlref/README.md")


def takes_positional(function: Any, count: int) -> bool:
    """Whether a function takes so many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin, which does not say
        pass
    return True


def is_tree(config_class: Any) -> bool:
    """Whether jax sees a Config's settings, or it as a whole as something unknown."""
    import jax

    try:
        config = config_class()
    except Exception:  # the user's own code: `make` says where
        return True
    return not any(leaf is config for leaf in jax.tree.leaves(config))


def undefined_in(path: Path) -> list[str]:
    """The names of the contract that a file, which cannot be imported, nowhere gives a value; none if it is unsure."""
    try:
        source = path.read_text()
        symbols = symtable.symtable(source, str(path), "exec").get_symbols()
    except (OSError, SyntaxError, ValueError):
        return []
    named = {x.get_name() for x in symbols if x.is_assigned() or x.is_imported()}
    return [] if re.search(r"^from .* import \*", source, re.MULTILINE) else [x for x in CONTRACT if x not in named]


def name_of(module: ModuleType) -> str:
    """What an agent is called: its file's name."""
    return module.__name__.rpartition(".")[2]


def traced_names(config: Any) -> list[str]:
    """The settings of a Config, or of its class, that are traced: leaves of the pytree, which may be batched."""
    return [f.name for f in dataclasses.fields(config) if f.metadata.get("pytree_node", True)]


def check_update(name: str, state: Any, returned: Any, source: Path | None = None) -> None:
    """Raise UsageError unless the update of agent `name`, which gets `state`, may return `returned`."""
    import jax

    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        raise UsageError(f"the update of {name} must return a pair: the new state, and a dictionary of diagnostics")
    new, diagnostics = returned
    if jax.tree.structure(new) != jax.tree.structure(state):  # type: ignore[operator]
        raise UsageError(f"the update of {name} must return a state of the same structure as init's")
    for (path, x), y in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(new), strict=True):
        was, now = jax.typeof(x), jax.typeof(y)
        if (was.shape, was.dtype) != (now.shape, now.dtype):
            raise UsageError(
                f"the update of {name} must leave {jax.tree_util.keystr(path)} of its state as it is: "
                f"{was.str_short()}, and not {now.str_short()}"
            )
    for key, x in diagnostics.items():
        number = isinstance(x, jax.Array | np.ndarray | np.generic | int | float) and np.ndim(x) == 0
        if not isinstance(key, str) or not number:
            entries = entries_of(nodes_of(source)) if source else []
            lines = [e.begins[0] for e in entries if e.name == key]
            where = f"{name}, line {lines[-1]}: its update" if lines else f"the update of {name}"
            what = f", not {jax.typeof(x).str_short()}" if isinstance(x, jax.Array) else ""
            what += "" if isinstance(key, str) else ", under a name that is a string"
            raise UsageError(f"{where} must return one number as the diagnostic {key!r}{what}")
    if "env_steps" not in diagnostics:
        raise UsageError(f"{name} does not report env_steps, the environment steps so far: its update must")
