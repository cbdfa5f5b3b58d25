"""Scores over many seeds against their targets: `python scripts/scores.py [NAME ...] [--num-seeds S]`.

Without a name, all of them, in about ten minutes on two cores. A seed's score is its `return_mean` at the last update:
the mean return of its last 100 training episodes, sampled policy, unscaled reward. Writes scripts/results/scores.json,
the table scripts/results/scores.md and the picture scripts/results/scores.png.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rlref
from rlref import envs, stats

RESULTS = Path(__file__).resolve().parent / "results"


class Benchmark(NamedTuple):
    """A training, and what it has to reach."""

    settings: dict[str, Any]
    num_seeds: int
    target: str
    reached: Callable[[np.ndarray, float], bool]
    """(scores `[seed]`, the random policy's mean return) -> whether the target was reached"""


BENCHMARKS = {
    "CartPole-v1": Benchmark(
        {}, 32, "IQM >= 499, every seed >= 490", lambda x, _: stats.iqm(x) >= 499 and x.min() >= 490
    ),
    "Acrobot-v1": Benchmark({}, 32, "IQM >= -90", lambda x, _: stats.iqm(x) >= -90),
    "Pendulum-v1": Benchmark(
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
        lambda x, _: stats.iqm(x) >= -200,
    ),
    "Breakout-MinAtar": Benchmark(
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
        lambda x, random: x.min() >= max(5, 5 * random),
    ),
}


def random_return(env_id: str, episodes: int = 500) -> float:
    """Mean return of uniformly random actions, over whole episodes."""
    import jax
    import jax.numpy as jnp

    env, params = envs.make_env(env_id)
    space = env.action_space(params)

    def episode(key: jax.Array) -> jax.Array:
        key, key_reset = jax.random.split(key)
        _, state = env.reset(key_reset, params)

        def step(carry: Any) -> Any:
            key, state, total, _ = carry
            key, key_act, key_env = jax.random.split(key, 3)
            _, state, reward, terminated, truncated, _ = env.step(key_env, state, space.sample(key_act), params)
            return key, state, total + reward, terminated | truncated

        return jax.lax.while_loop(lambda carry: ~carry[3], step, (key, state, jnp.float32(0), jnp.bool(False)))[2]

    return float(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes)).mean())


def figure(results: dict[str, Any]) -> None:
    """Learning curves: the IQM over seeds, and every seed as a thin line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, len(results), figsize=(3.4 * len(results), 2.8), layout="constrained", squeeze=False)
    for ax, (name, result) in zip(axes[0], results.items(), strict=True):
        steps, curves = np.asarray(result["curve_steps"]), np.asarray(result["curves"], float)
        ax.plot(steps, curves.T, color="tab:blue", alpha=0.15, linewidth=0.7)
        ax.plot(steps, [stats.iqm(x) for x in curves.T], color="tab:blue", linewidth=2)
        ax.set_title(f"{name}, {len(curves)} seeds", fontsize=10)
        ax.set_xlabel("environment steps", fontsize=9)
        ax.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
        ax.tick_params(labelsize=8)
        ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("return", fontsize=9)
    fig.savefig(RESULTS / "scores.png", dpi=110)


def table(results: dict[str, Any]) -> str:
    columns = (
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
        settings = ", ".join(f"{k} {v}" for k, v in r["settings"].items()) or "defaults"
        lines.append(
            f"| {name} | {len(r['scores'])} | {r['steps_per_seed']:,} | {r['iqm']:.1f} [{low:.1f}, {high:.1f}] | "
            f"{min(r['scores']):.1f} | {max(r['scores']):.1f} | {r['random']:.1f} | {r['target']} | "
            f"{'yes' if r['reached'] else 'NO'} | {r['train_seconds']:.0f} | {settings} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--num-seeds", type=int, help="instead of the benchmark's own number")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    from rlref import ppo

    path = RESULTS / "scores.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in options.names or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        config = ppo.Config(env_id=name, **benchmark.settings)
        run = rlref.train("ppo", config, num_seeds=options.num_seeds or benchmark.num_seeds)
        random = random_return(name)
        every = max(1, run.metrics["return_mean"].shape[1] // 100)
        results[name] = {
            "settings": benchmark.settings,
            "steps_per_seed": int(run.metrics["env_steps"][0, -1]),
            "random": random,
            "target": benchmark.target,
            "reached": bool(benchmark.reached(run.scores, random)),
            **run.summary,
            "curve_steps": run.metrics["env_steps"][0, ::every].tolist(),
            "curves": [
                [None if np.isnan(y) else round(float(y), 3) for y in x[::every]] for x in run.metrics["return_mean"]
            ],
        }
        print(table({name: results[name]}).splitlines()[-1], flush=True)
        results = {k: results[k] for k in BENCHMARKS if k in results}
        path.write_text(json.dumps(results) + "\n")
        (RESULTS / "scores.md").write_text(table(results) + "\n")
    figure(results)


if __name__ == "__main__":
    main()
