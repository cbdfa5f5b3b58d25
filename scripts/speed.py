"""Speed and memory, each as a ratio within one run: `python scripts/speed.py [rejax] [diagnostics] [memory]`.

    rejax         CartPole-v1, 8 seeds of 5e5 steps, the same settings, against rejax 0.1.3 with gymnax 0.0.9
                  (in an environment of its own, made on first use), in turn, compilation apart
    diagnostics   one update with all diagnostics against the same update with them dropped, in turn
    memory        peak memory of 64 seeds, for 1e5 and for 5e5 steps

Without a name, all three. Results go to scripts/results/speed.json. Leave the machine alone while it runs.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REJAX_ENV = HERE.parent / ".venv-rejax"
REPEATS = 3
TIMESTEPS = 500_000


def worker_ours(num_seeds: int, total_timesteps: int) -> dict[str, Any]:
    """Train through the public interface; steps/s and compile time as the run reports them."""
    import rlref
    from rlref import ppo

    run = rlref.train("ppo", ppo.Config(total_timesteps=total_timesteps), num_seeds=num_seeds)
    return {k: run.summary[k] for k in ("steps_per_second", "compile_seconds", "iqm")}


def worker_rejax(num_seeds: int, total_timesteps: int) -> dict[str, Any]:
    """rejax's PPO with rlref's settings, threads as jax has them by default, without its evaluations."""
    import jax
    from rejax import PPO  # type: ignore[import-not-found]  # it has an environment of its own

    algorithm = PPO.create(
        env="CartPole-v1",
        agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
        total_timesteps=total_timesteps,
        eval_freq=total_timesteps,
        skip_initial_evaluation=True,
        num_envs=4,
        num_steps=128,
        num_epochs=4,
        num_minibatches=4,
        learning_rate=2.5e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_eps=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
    ).replace(eval_callback=lambda *_: ())
    keys = jax.random.split(jax.random.key(0), num_seeds)
    start = time.monotonic()
    train = jax.jit(jax.vmap(PPO.train, in_axes=(None, 0))).lower(algorithm, keys).compile()
    compiled = time.monotonic()
    jax.block_until_ready(train(algorithm, keys))
    seconds = time.monotonic() - compiled
    return {
        "steps_per_second": round(num_seeds * total_timesteps / seconds),
        "compile_seconds": round(compiled - start, 2),
    }


def worker_diagnostics() -> dict[str, Any]:
    """Medians over 20 turns of 50 updates, with all diagnostics and with none: XLA removes what is not returned."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from rlref import ppo  # importing rlref gives jax one CPU device per core

    devices = jax.devices()[:8]
    mesh = jax.make_mesh((len(devices),), ("seed",), axis_types=(AxisType.Auto,), devices=devices)
    seeds = NamedSharding(mesh, P("seed"))
    agent = ppo.make(ppo.Config())
    keys = jax.vmap(jax.random.key)(jnp.arange(8))
    state = jax.jit(jax.vmap(agent.init), in_shardings=seeds, out_shardings=seeds)(keys)
    programs = {}
    for keep in (True, False):

        def updates(state: Any, keep: bool = keep) -> Any:
            def body(state: Any, step: jax.Array) -> Any:
                state, diagnostics = jax.vmap(agent.update, in_axes=(0, None))(state, step)
                return state, diagnostics if keep else None

            return jax.lax.scan(body, state, jnp.arange(50))

        programs[keep] = jax.jit(updates, in_shardings=(seeds,)).lower(state).compile()
        jax.block_until_ready(programs[keep](state))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(20):
        for keep, program in programs.items():
            start = time.monotonic()
            jax.block_until_ready(program(state))
            seconds[keep].append(time.monotonic() - start)
    with_, without = statistics.median(seconds[True]), statistics.median(seconds[False])
    return {"ms_per_update_with": 20 * with_, "ms_per_update_without": 20 * without, "cost": with_ / without - 1}


def worker_memory(num_seeds: int, total_timesteps: int) -> dict[str, Any]:
    result = worker_ours(num_seeds, total_timesteps)
    return result | {"peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": worker_ours,
    "rejax": worker_rejax,
    "diagnostics": worker_diagnostics,
    "memory": worker_memory,
}


def start(python: Path | str, name: str, *arguments: int) -> dict[str, Any]:
    """Run a worker in a process of its own."""
    command = [str(python), str(Path(__file__).resolve()), "--worker", name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rejax_python() -> Path:
    python = REJAX_ENV / "bin" / "python"
    if not python.exists():
        print(f"making {REJAX_ENV.name} for rejax", flush=True)
        venv.create(REJAX_ENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "rejax==0.1.3", "gymnax==0.0.9"], check=True, timeout=600)
    return python


def measure_rejax() -> dict[str, Any]:
    python, ours, theirs = rejax_python(), [], []
    for turn in range(REPEATS):
        ours.append(start(sys.executable, "ours", 8, TIMESTEPS))
        theirs.append(start(python, "rejax", 8, TIMESTEPS))
        rates = ours[-1]["steps_per_second"], theirs[-1]["steps_per_second"]
        print(
            f"turn {turn + 1}: rlref {rates[0]:,}, rejax {rates[1]:,} steps/s, ratio {rates[0] / rates[1]:.2f}",
            flush=True,
        )
    ratio = statistics.median(a["steps_per_second"] / b["steps_per_second"] for a, b in zip(ours, theirs, strict=True))
    print(f"median ratio {ratio:.2f} (target: 2.8)")
    return {"rlref": ours, "rejax": theirs, "ratio": ratio}


def measure_diagnostics() -> dict[str, Any]:
    result = start(sys.executable, "diagnostics")
    print(
        f"one update of 8 seeds: {result['ms_per_update_with']:.2f} ms with diagnostics, "
        f"{result['ms_per_update_without']:.2f} ms without: {100 * result['cost']:.1f} % (target: at most 5 %)"
    )
    return result


def measure_memory() -> list[dict[str, Any]]:
    results = []
    for timesteps in (100_000, TIMESTEPS):
        results.append({"timesteps": timesteps, **start(sys.executable, "memory", 64, timesteps)})
        updates = timesteps // 512
        print(f"64 seeds, {updates} updates: peak {results[-1]['peak_rss_mb']:,} MB")
    growth = results[1]["peak_rss_mb"] - results[0]["peak_rss_mb"]
    metrics = 64 * (TIMESTEPS - 100_000) // 512 * 50 * 4 / 1e6
    print(f"growth {growth} MB, of which {metrics:.0f} MB are the additional updates' metrics")
    return results


MEASURES: dict[str, Callable[[], Any]] = {
    "rejax": measure_rejax,
    "diagnostics": measure_diagnostics,
    "memory": measure_memory,
}


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](*map(int, sys.argv[3:]))))
        return
    names = sys.argv[1:] or list(MEASURES)
    if unknown := set(names) - set(MEASURES):
        sys.exit(f"there is no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    path = HERE / "results" / "speed.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        results[name] = MEASURES[name]()
        results["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
