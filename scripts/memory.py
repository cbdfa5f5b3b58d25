"""What a memory is worth: ppo_rnn beside PPO, and beside PPO on the last four observations at a time.

    python scripts/memory.py [NAME ...]        those tasks whose name contains one; without, all
    python scripts/memory.py --speed           instead, updates against PPO's, in turns, on an idle machine: two minutes

Each row is a training of its own, with the same steps for all three: ppo_rnn's at its defaults but for what `TASKS`
says, PPO's at its own, but for ppo_rnn's values of what is `SHARED`. ppo_rnn sees the last action and reward as well. A
row that is in the results already is made again only with --again. Writes scripts/results/memory.json, and the table
in memory.md, in about half an hour on two cores. The score is as in scripts/scores.py: each seed's mean return over its
last 100 training episodes.
"""

import argparse
import inspect
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import page

import rlref
from probes.changes import stamp_of
from rlref import ppo, ppo_rnn, stats
from rlref.envs import make_env
from rlref.envs.partial import Stacked
from rlref.envs.suites import is_installed
from rlref.runs.provenance import environment
from rlref.settings import in_json, settings_of

RESULTS = Path(__file__).resolve().parent / "results"
AGENTS = {"ppo_rnn": "PPO with a GRU", "ppo": "PPO", "stacked": "PPO, four observations at a time"}
STACKED = 4
TURNS = 9
SPEEDS: dict[str, dict[str, Any] | None] = {  # None: PPO, with its own two networks of 64 and 64 units
    "PPO": None,
    "ppo_rnn: 32 units, sequences of 32 steps": {},
    "LSTM instead of GRU": {"cell": "lstm"},
    "64 units": {"memory_size": 64, "hidden_sizes": (64,)},
    "32 units, whole rollouts as sequences": {"sequence_length": None},
    "64 units, whole rollouts": {"memory_size": 64, "hidden_sizes": (64,), "sequence_length": None},
}
SHARED = (
    "learning_rate", "clip_vloss", "normalize_observations", "scale_rewards", "num_envs", "num_steps",
    "num_minibatches",
)  # fmt: skip


class Task(NamedTuple):
    """What is trained, and how."""

    env_id: str
    settings: Mapping[str, Any] = MappingProxyType({})
    """ppo_rnn's, other than its defaults"""
    params: Mapping[str, Any] = MappingProxyType({})
    """the environment's"""
    seeds: int = 8
    agents: tuple[str, ...] = tuple(AGENTS)


LARGER = {
    "total_timesteps": 5_000_000,
    "num_envs": 32,
    "num_minibatches": 8,
    "memory_size": 64,
    "hidden_sizes": (64,),
    "learning_rate": 5e-4,
}
TASKS = {
    "CartPole-v1 without velocities": Task("PositionOnlyCartPole-v1", seeds=32),
    **{
        f"MemoryChain-bsuite, length {n}": Task("MemoryChain-bsuite", {}, {"memory_length": n}) for n in (5, 10, 20, 40)
    },
    **{
        f"MemoryChain-bsuite, length {n}, last action and reward not shown": Task(
            "MemoryChain-bsuite", {"last_inputs": False}, {"memory_length": n}, agents=("ppo_rnn",)
        )
        for n in (5, 40)
    },
    "FourRooms-misc": Task("FourRooms-misc", {"total_timesteps": 1_000_000}),
    "MetaMaze-misc": Task("MetaMaze-misc", {"total_timesteps": 1_000_000}),
    "xminigrid:MiniGrid-MemoryS8": Task("xminigrid:MiniGrid-MemoryS8", LARGER),
}


def config_of(task: Task, agent: str) -> Any:
    """A row's settings."""
    config: Any = ppo_rnn.Config(env_id=task.env_id, **task.settings)
    if agent == "ppo_rnn":
        return config
    return ppo.Config(env_id=task.env_id, **{name: getattr(config, name) for name in ("total_timesteps", *SHARED)})


def trained(task: Task, agent: str) -> dict[str, Any]:
    """A row's scores, and what it took."""
    env, params = make_env(task.env_id)
    params = params.replace(**task.params) if task.params else params
    config = config_of(task, agent)
    env = Stacked(env, STACKED) if agent == "stacked" else env
    name = "ppo" if agent == "stacked" else agent
    run = rlref.train(name, config, env=env, env_params=params, num_seeds=task.seeds, run_dir=None, sinks=())
    found = {"scores": run.scores.tolist(), "steps_per_second": run.summary["steps_per_second"]}
    found |= {"steps": int(run.metrics["env_steps"].max()), "settings": in_json(settings_of(config))}
    made = environment(None)
    found |= {"env_params": dict(task.params), "versions": made["versions"], "devices": made["devices"]}
    return found | {"stamp": stamp_of(inspect.getsource(ppo if name == "ppo" else ppo_rnn))}


def cell(row: dict[str, Any] | None) -> str:
    """The interquartile mean and its interval, the mean and the standard deviation, and the worst seed."""
    if row is None:
        return ""
    scores = np.asarray(row["scores"])
    low, high = stats.iqm_interval(scores)
    mean = f"mean {scores.mean():.2f} ± {scores.std():.2f}"
    return f"{stats.iqm(scores):.2f} [{low:.2f}, {high:.2f}], {mean}, worst {scores.min():.2f}"


def speeds() -> dict[str, list[float]]:
    """Seconds of ten updates of 4 seeds on one device, turn by turn, of PPO and of ppo_rnn, compiling apart."""
    env, params = make_env("PositionOnlyCartPole-v1")
    keys, programs, took = jax.vmap(jax.random.key)(np.arange(4)), {}, {name: list[float]() for name in SPEEDS}
    for name, settings in SPEEDS.items():
        module: Any = ppo_rnn if settings is not None else ppo
        shared = {x: getattr(ppo_rnn.Config(), x) for x in ("total_timesteps", *SHARED)}
        agent = module.make(module.Config(**{**shared, **(settings or {})}), env, params)
        state = jax.jit(jax.vmap(agent.init))(keys)

        def ten(state: Any, update: Any = agent.update) -> Any:
            return jax.lax.fori_loop(0, 10, lambda i, state: jax.vmap(update, (0, None))(state, i)[0], state)

        programs[name] = jax.jit(ten).lower(state).compile(), state
    for turn in range(TURNS + 1):
        for name, (program, state) in programs.items():
            begin = time.perf_counter()
            jax.block_until_ready(program(state))
            if turn:
                took[name].append(time.perf_counter() - begin)
    return took


def speed_table(took: dict[str, list[float]]) -> str:
    """Each one's speed as a share of PPO's: the median over turns, and the range."""
    lines = ["| updates of 8 environments x 128 steps | share of PPO's speed, median [range] |", "|---|---|"]
    for name in [*SPEEDS][1:]:
        share = np.array(took["PPO"]) / took[name]
        lines.append(f"| {name} | {np.median(share):.2f} [{share.min():.2f}, {share.max():.2f}] |")
    return "\n".join(lines)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """A line per task."""
    lines = [f"| task | {' | '.join(AGENTS.values())} | seeds x steps |", f"|---|{'---|' * (len(AGENTS) + 1)}"]
    for name, task in TASKS.items():
        found = {agent: rows.get(f"{agent}/{name}") for agent in AGENTS}
        if any(found.values()):
            steps = next(row["steps"] for row in found.values() if row)
            lines.append(f"| {name} | {' | '.join(map(cell, found.values()))} | {task.seeds} x {steps:,} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--speed", action="store_true", help="speed against PPO's instead")
    parser.add_argument("--again", action="store_true", help="make rows again that are there")
    options = parser.parse_args()
    path = RESULTS / "memory.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    if options.speed:
        rows["speed"] = speeds()
        path.write_text(json.dumps(rows, indent=1) + "\n")
        page.put(RESULTS / "memory.md", "speed", speed_table(rows["speed"]))
        print(speed_table(rows["speed"]))
        return 0
    page.put(RESULTS / "memory.md", "scripts/memory.py", table(rows))
    for name, task in TASKS.items():
        suite = task.env_id.partition(":")[0]
        wanted = not options.names or any(x in name for x in options.names)
        if not wanted or (":" in task.env_id and not is_installed(suite)):
            continue
        for agent in task.agents:
            if f"{agent}/{name}" in rows and not options.again:
                continue
            rows[f"{agent}/{name}"] = trained(task, agent)
            print(f"{agent}/{name}: {cell(rows[f'{agent}/{name}'])}", flush=True)
            path.write_text(json.dumps(rows, indent=1) + "\n")
            page.put(RESULTS / "memory.md", "scripts/memory.py", table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
