"""Scores over many seeds against their targets: `python scripts/scores.py [NAME ...] [--num-seeds S]`.

A name is an agent ("dqn") or one of its benchmarks ("dqn/CartPole-v1"); without one, all of them, in about 35 minutes
on two cores. A seed's score is its `return_mean` at the last update: the mean return of its last 100 training episodes,
sampled policy, unscaled reward; of CEM it is `mean_policy_return`, that of the Gaussian's mean on fresh keys. Writes
scripts/results/scores.json, the table scripts/results/scores.md and the picture scripts/results/scores.png.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rlref
from rlref import stats
from rlref.agents import load_agent
from rlref.reference import random_return

RESULTS = Path(__file__).resolve().parent / "results"


class Benchmark(NamedTuple):
    """A training, and what it has to reach."""

    settings: dict[str, Any]
    num_seeds: int
    target: str
    reached: Callable[[np.ndarray, float], bool]
    """(scores `[seed, update]`, the random policy's mean return) -> whether the target was reached"""


def iqm_of(returns: np.ndarray) -> float:
    """Of the scores, the last update's."""
    return stats.iqm(returns[:, -1])


def rising(returns: np.ndarray) -> bool:
    """Whether every seed's mean over the last tenth of training is above that over the tenth before half time.

    Not one update against another: a mean of 100 episodes of Breakout varies by 2 from update to update.
    """
    n = returns.shape[1]
    return bool((returns[:, -n // 10 :].mean(axis=1) > returns[:, n * 4 // 10 : n // 2].mean(axis=1)).all())


BENCHMARKS = {
    "ppo/CartPole-v1": Benchmark(
        {}, 32, "IQM >= 499, every seed >= 490", lambda x, _: iqm_of(x) >= 499 and x[:, -1].min() >= 490
    ),
    "ppo/Acrobot-v1": Benchmark({}, 32, "IQM >= -90", lambda x, _: iqm_of(x) >= -90),
    "ppo/Pendulum-v1": Benchmark(
        {
            "num_envs": 16,
            "num_minibatches": 16,
            "update_epochs": 10,
            "learning_rate": 1e-3,
            "gamma": 0.9,
            "ent_coef": 0.0,
            "clip_vloss": False,
            "normalize_observations": True,
            "scale_rewards": True,
        },
        32,
        "IQM >= -200",
        lambda x, _: iqm_of(x) >= -200,
    ),
    "ppo/Breakout-MinAtar": Benchmark(
        {
            "total_timesteps": 1_000_000,
            "num_envs": 64,
            "num_steps": 32,
            "num_minibatches": 8,
            "learning_rate": 1e-3,
            "hidden_sizes": (128,),
            "activation": "relu",
        },
        4,
        "every seed >= 5 and >= 5 x random",
        lambda x, random: x[:, -1].min() >= max(5, 5 * random),
    ),
    "dqn/CartPole-v1": Benchmark({}, 32, "IQM >= 490", lambda x, _: iqm_of(x) >= 490),
    "dqn/Acrobot-v1": Benchmark(
        {"learning_rate": 5e-4, "exploration_fraction": 0.3, "end_e": 0.01},
        32,
        "IQM >= -90",
        lambda x, _: iqm_of(x) >= -90,
    ),
    "dqn/MountainCar-v0": Benchmark(
        {
            "num_envs": 5,
            "train_frequency": 5,
            "learning_rate": 4e-3,
            "anneal_lr": True,
            "gamma": 0.98,
            "buffer_size": 50_000,
            "exploration_fraction": 0.2,
            "end_e": 0.02,
        },
        32,
        "IQM >= -120",
        lambda x, _: iqm_of(x) >= -120,
    ),
    "dqn/Breakout-MinAtar": Benchmark(
        {
            "total_timesteps": 1_000_000,
            "num_envs": 8,
            "train_frequency": 8,
            "cycles_per_update": 125,
            "buffer_size": 100_000,
            "buffer_dtype": "bool",
            "batch_size": 64,
            "learning_starts": 8_000,
            "target_network_frequency": 1000,
            "loss": "huber",
            "exploration_fraction": 0.1,
            "hidden_sizes": (128,),
        },
        4,
        "every seed >= 5, and rising over the second half",
        lambda x, _: x[:, -1].min() >= 5 and rising(x),
    ),
    "cem/CartPole-v1": Benchmark({"num_generations": 15}, 32, "every seed = 500", lambda x, _: x[:, -1].min() >= 500),
    "cem/Acrobot-v1": Benchmark({"num_generations": 15}, 32, "IQM >= -90", lambda x, _: iqm_of(x) >= -90),
    "cem/MountainCarContinuous-v0": Benchmark(
        {
            "num_generations": 30,
            "population_size": 256,
            "elite_fraction": 0.05,
            "num_rollouts": 1,
            "init_variance": 100.0,
            "extra_variance": 100.0,
        },
        32,
        "30 of 32 seeds > 85",
        lambda x, _: (x[:, -1] > 85).sum() >= 30,
    ),
    "cem/Pendulum-v1": Benchmark(
        {
            "num_generations": 60,
            "population_size": 256,
            "elite_fraction": 0.05,
            "num_rollouts": 16,
            "extra_variance_fraction": 2 / 3,
            "smoothing": 0.1,
            "hidden_sizes": (8,),
        },
        32,
        "IQM >= -200",
        lambda x, _: iqm_of(x) >= -200,
    ),
}


def figure(results: dict[str, Any]) -> None:
    """Learning curves, a row per agent: the IQM over seeds, and every seed as a thin line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [[name for name in results if name.startswith(f"{agent}/")] for agent in agents_of(results)]
    shape = len(rows), max(map(len, rows))
    fig, axes = plt.subplots(*shape, figsize=(3.4 * shape[1], 2.6 * shape[0]), layout="constrained", squeeze=False)
    for ax in axes.flat:
        ax.set_visible(False)
    for ax, name in ((axes[r, c], name) for r, row in enumerate(rows) for c, name in enumerate(row)):
        ax.set_visible(True)
        result = results[name]
        steps, curves = np.asarray(result["curve_steps"]), np.asarray(result["curves"], float)
        color = f"C{list(agents_of(results)).index(name.partition('/')[0])}"
        ax.plot(steps, curves.T, color=color, alpha=0.15, linewidth=0.7)
        ax.plot(steps, [stats.iqm(x) for x in curves.T], color=color, linewidth=2)
        agent, _, env_id = name.partition("/")
        ax.set_title(f"{agent.upper()}, {env_id}, {len(curves)} seeds", fontsize=10)
        ax.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
        ax.tick_params(labelsize=8)
        ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("environment steps", fontsize=9)
    for ax in axes[:, 0]:
        ax.set_ylabel("return", fontsize=9)
    fig.savefig(RESULTS / "scores.png", dpi=110)


def agents_of(names: Iterable[str]) -> dict[str, None]:
    """The agents of benchmarks, in their order."""
    return dict.fromkeys(name.partition("/")[0] for name in names)


def table(results: dict[str, Any]) -> str:
    columns = (
        "agent",
        "environment",
        "seeds",
        "steps",
        "IQM [95 % interval]",
        "worst",
        "best",
        "random",
        "target",
        "reached",
        "s",
    )
    lines = ["| " + " | ".join((*columns, "settings")) + " |", "|" + "---|" * (len(columns) + 1)]
    for name, r in results.items():
        low, high = r["iqm_interval_95"]
        settings = ", ".join(f"{k} {shown(v)}" for k, v in r["settings"].items())
        agent, _, env_id = name.partition("/")
        lines.append(
            f"| {agent.upper()} | {env_id} | {len(r['scores'])} | {r['steps_per_seed']:,} | "
            f"{r['iqm']:.1f} [{low:.1f}, {high:.1f}] | "
            f"{min(r['scores']):.1f} | {max(r['scores']):.1f} | {r['random']:.1f} | {r['target']} | "
            f"{'yes' if r['reached'] else 'NO'} | {r['train_seconds']:.0f} | {settings or 'defaults'} |"
        )
    return "\n".join(lines)


def shown(setting: Any) -> str:
    return (
        f"{setting:g}" if isinstance(setting, float) else str(tuple(setting) if isinstance(setting, list) else setting)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    agents = agents_of(BENCHMARKS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*agents, *BENCHMARKS])}")
    parser.add_argument("--num-seeds", type=int, help="instead of the benchmark's own number")
    options = parser.parse_args()
    if unknown := set(options.names) - {*agents, *BENCHMARKS}:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join([*agents, *BENCHMARKS])}")
    path = RESULTS / "scores.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name, benchmark in BENCHMARKS.items():
        agent, _, env_id = name.partition("/")
        if options.names and not {agent, name} & set(options.names):
            continue
        module = load_agent(agent)
        config = module.Config(env_id=env_id, **benchmark.settings)
        run = rlref.train(module, config, num_seeds=options.num_seeds or benchmark.num_seeds)
        random = random_return(env_id)
        returns = run.metrics[run.score]
        every = max(1, returns.shape[1] // 100)
        results[name] = {
            "settings": benchmark.settings,
            "steps_per_seed": int(run.metrics["env_steps"][:, -1].mean()),  # CEM's seeds differ
            "random": random,
            "target": benchmark.target,
            "reached": bool(benchmark.reached(returns, random)),
            **run.summary,
            "curve_steps": run.metrics["env_steps"][:, ::every].mean(axis=0).tolist(),
            "curves": [[None if np.isnan(y) else round(float(y), 3) for y in x[::every]] for x in returns],
        }
        print(table({name: results[name]}).splitlines()[-1], flush=True)
        results = {k: results[k] for k in BENCHMARKS if k in results}
        path.write_text(json.dumps(results) + "\n")
        (RESULTS / "scores.md").write_text(table(results) + "\n")
    figure(results)


if __name__ == "__main__":
    main()
