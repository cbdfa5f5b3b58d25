"""gymnasium on the host, against Stable-Baselines3: `pip install -e '.[gymnasium]' && python scripts/halfcheetah.py`.

PPO on HalfCheetah-v5 with Stable-Baselines3's settings, in turns: `rlref train` with 8 seeds as one process, and two
processes of Stable-Baselines3 with one seed and one thread each (in an environment of its own, made on first use).
Environment steps/s of all seeds together, learning included, compilation apart.

Writes scripts/results/halfcheetah.json, and the table in halfcheetah.md, in about ten minutes on two cores. Leave the
machine alone while it runs.
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

import page
from peer_environments import python_with

HERE = Path(__file__).resolve().parent
SB3 = "stable-baselines3==2.9.2"
ENV_ID = "HalfCheetah-v5"
SEEDS, PROCESSES = 8, 2
STEPS = 2048  # of a rollout; Stable-Baselines3's default, as are minibatches of 64, 10 epochs, and the rest
ROLLOUTS = 10  # per seed
REPEATS = 3
TIME_LIMIT = 1_200  # seconds of a process


def worker_rlref() -> float:
    """Steps/s of one run of 8 seeds."""
    import rlref
    from rlref import ppo

    config = ppo.Config(
        env_id=f"gymnasium:{ENV_ID}", total_timesteps=ROLLOUTS * STEPS, num_envs=1, num_steps=STEPS,
        num_minibatches=STEPS // 64, update_epochs=10, learning_rate=3e-4, anneal_lr=False, clip_vloss=False,
        ent_coef=0.0,
    )  # fmt: skip
    run = rlref.train("ppo", config, num_seeds=SEEDS)
    return run.summary["steps_per_second"]


def worker_sb3(seed: str) -> float:
    """Steps/s of one process."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", ENV_ID, seed=int(seed), device="cpu")
    model.learn(STEPS)
    begin = time.perf_counter()
    model.learn(ROLLOUTS * STEPS)
    return ROLLOUTS * STEPS / (time.perf_counter() - begin)


WORKERS: dict[str, Callable[..., float]] = {"rlref": worker_rlref, "sb3": worker_sb3}


def start(python: Path | str, *arguments: str) -> subprocess.Popen[str]:
    command = [str(python), str(Path(__file__).resolve()), "--worker", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> float:
    """What a worker found, on the last line that it printed."""
    try:
        out, _ = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    if process.returncode:
        sys.exit(f"a worker ended with {process.returncode}")
    return json.loads(out.splitlines()[-1])


def report(found: dict[str, Any]) -> str:
    """A line each."""
    ours, theirs, ratios = found["rlref"], found["sb3"], found["ratios"]
    return "\n".join(
        [
            f"PPO on {ENV_ID}, {found['machine']}. Steps/s of all seeds together, learning included.",
            "",
            "| | seeds | steps/s | ratio [least, greatest] |",
            "|---|---|---|---|",
            f"| Stable-Baselines3, {PROCESSES} processes | {PROCESSES} | {statistics.median(theirs):,.0f} | 1 |",
            f"| rlref, one run | {SEEDS} | {statistics.median(ours):,.0f} | {statistics.median(ratios):.2f} "
            f"[{min(ratios):.2f}, {max(ratios):.2f}] |",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, *arguments = options.worker
        print(json.dumps(WORKERS[name](*arguments)))
        return
    python = python_with("sb3", SB3, "gymnasium[mujoco]", seconds=TIME_LIMIT)
    found: dict[str, Any] = {"rlref": [], "sb3": [], "ratios": []}
    for turn in range(REPEATS):
        found["rlref"].append(ended(start(sys.executable, "rlref")))
        workers = [start(python, "sb3", str(PROCESSES * turn + i)) for i in range(PROCESSES)]
        found["sb3"].append(sum(map(ended, workers)))
        found["ratios"].append(found["rlref"][-1] / found["sb3"][-1])
        print({name: round(x[-1], 2) for name, x in found.items()}, flush=True)
    found["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, jax {version('jax')}, {SB3.replace('==', ' ')}"
    path = HERE / "results" / "halfcheetah.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    page.put(path.with_suffix(".md"), "halfcheetah", report(found))


if __name__ == "__main__":
    main()
