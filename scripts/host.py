"""How fast gymnasium's environments step on the host: `pip install -e '.[gymnasium]' && python scripts/host.py`.

16 environments under random actions, nothing learnt, each way in a process of its own and in turns: rlref's bridge,
which jax calls once a step for all environments of a device; gymnasium's SyncVectorEnv, one after the other in Python;
its AsyncVectorEnv, a process each; and envpool, in C++ with two threads (in an environment of its own, made on first
use). Environment steps/s of all together, compilation and start apart.

Writes scripts/results/host.json, and the table in host.md, in about five minutes on two cores. Leave the machine alone
while it runs.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import page
from peer_environments import python_with

RESULTS = Path(__file__).resolve().parent / "results"
ENV_IDS = ("CartPole-v1", "HalfCheetah-v5")
ENVPOOL = "envpool==1.2.5"
ENVS = 16
THREADS = 2  # of envpool, and devices of the bridge
SECONDS = 5.0  # that a measurement takes at least
REPEATS = 3
TIME_LIMIT = 600  # seconds of a process


def timed(steps: Callable[[int], object]) -> float:
    """Environment steps/s of what makes so many steps of all environments."""
    number = 64
    while True:
        begin = time.perf_counter()
        steps(number)
        took = time.perf_counter() - begin
        if took >= SECONDS:
            return ENVS * number / took
        number *= 2


def bridge(env_id: str) -> float:
    """rlref's, over two devices, as when it trains."""
    import jax
    from jax.sharding import PartitionSpec as P
    from suites import random_play

    from rlref.envs import make_env
    from rlref.runs import compiling

    env, params = make_env(f"gymnasium:{env_id}")
    mesh, _ = compiling.mesh_for(THREADS)

    def play(keys: jax.Array, steps: jax.Array) -> jax.Array:
        return random_play(env, params, ENVS // THREADS, keys[0], steps)[None]

    run = jax.jit(compiling.on_each_device(play, mesh, (P("seed"), P()), P("seed")))
    keys = jax.random.split(jax.random.key(0), THREADS)
    jax.block_until_ready(run(keys, 1))
    return timed(lambda number: jax.block_until_ready(run(keys, number)))


def vector_env(env_id: str, kind: str) -> float:
    """One of gymnasium's."""
    import gymnasium

    envs = getattr(gymnasium.vector, kind)([lambda: gymnasium.make(env_id)] * ENVS)
    envs.reset(seed=0)

    def steps(number: int) -> None:
        for _ in range(number):
            envs.step(envs.action_space.sample())

    found = timed(steps)
    envs.close()
    return found


def envpool(env_id: str) -> float:
    """envpool's, with gymnasium's interface; its own limits end episodes."""
    import envpool as pool

    envs = pool.make_gymnasium(env_id, num_envs=ENVS, num_threads=THREADS)
    envs.reset()
    rng = np.random.default_rng(0)

    def actions() -> np.ndarray:
        if hasattr(envs.action_space, "n"):
            return rng.integers(envs.action_space.n, size=ENVS)
        return rng.uniform(envs.action_space.low, envs.action_space.high, (ENVS, *envs.action_space.shape))

    def steps(number: int) -> None:
        for _ in range(number):
            envs.step(actions())

    return timed(steps)


WAYS: dict[str, Callable[[str], float]] = {
    "rlref's bridge": bridge,
    "SyncVectorEnv": lambda env_id: vector_env(env_id, "SyncVectorEnv"),
    "AsyncVectorEnv": lambda env_id: vector_env(env_id, "AsyncVectorEnv"),
    "envpool": envpool,
}


def measured(python: Path | str, way: str, env_id: str) -> float:
    """Steps/s, in a process of its own."""
    command = [str(python), str(Path(__file__).resolve()), "--worker", way, env_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    if done.returncode:
        sys.exit(f"{way} on {env_id} ended with {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def report(found: dict[str, Any]) -> str:
    """A line for each way of each environment; ratios are within a turn."""
    lines = [
        f"{ENVS} environments, random actions, {found['machine']}; medians of {REPEATS} turns.",
        "",
        "| environment | stepped by | steps/s | ratio to SyncVectorEnv [least, greatest] |",
        "|---|---|---|---|",
    ]
    for env_id, ways in found["steps_per_second"].items():
        for way, speeds in ways.items():
            ratios = [mine / sync for mine, sync in zip(speeds, ways["SyncVectorEnv"], strict=True)]
            lines.append(
                f"| {env_id} | {way} | {statistics.median(speeds):,.0f} | {statistics.median(ratios):.2f} "
                f"[{min(ratios):.2f}, {max(ratios):.2f}] |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        way, env_id = options.worker
        print(json.dumps(WAYS[way](env_id)))
        return
    others = python_with("envpool", ENVPOOL, "gymnasium", seconds=TIME_LIMIT)
    speeds: dict[str, dict[str, list[float]]] = {env_id: {way: [] for way in WAYS} for env_id in ENV_IDS}
    for _ in range(REPEATS):
        for env_id, ways in speeds.items():
            for way, found in ways.items():
                found.append(measured(others if way == "envpool" else sys.executable, way, env_id))
                print(f"{env_id}, {way}: {found[-1]:,.0f} steps/s", flush=True)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, gymnasium {version('gymnasium')}, {ENVPOOL}"
    path = RESULTS / "host.json"
    path.write_text(json.dumps({"steps_per_second": speeds, "machine": machine.replace("==", " ")}, indent=1) + "\n")
    page.put(path.with_suffix(".md"), "host", report(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
