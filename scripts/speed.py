"""Speed and memory, each as a ratio within one run: `python scripts/speed.py [NAME ...]`.

    ppo/rejax, dqn/rejax   CartPole-v1, 8 seeds of 5e5 steps, the same settings, against rejax 0.1.3 with gymnax 0.0.9
                           (in an environment of its own, made on first use), in turn, compilation apart
    ppo/diagnostics, dqn/diagnostics
                           one update with all diagnostics against the same update with them dropped, in turn
    ppo/memory             peak memory of 64 seeds, for 1e5 and for 5e5 steps
    dqn/seeds              steps/s and memory from 1 to 256 seeds; bytes of a seed and of a stored transition

Without a name, all of them. Results go to scripts/results/speed.json. Leave the machine alone while it runs.
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


def config_of(agent: str, **settings: Any) -> Any:
    """The settings that are measured: the defaults, and for DQN the plain maximum, as in PureJaxRL."""
    from rlref.agents import load_agent

    return load_agent(agent).Config(**({"target": "max"} if agent == "dqn" else {}), **settings)


def worker_ours(agent: str, num_seeds: int, total_timesteps: int) -> dict[str, Any]:
    """Train through the public interface; steps/s and compile time as the run reports them."""
    import rlref

    run = rlref.train(agent, config_of(agent, total_timesteps=int(total_timesteps)), num_seeds=int(num_seeds))
    kept: dict[str, Any] = {k: run.summary[k] for k in ("steps_per_second", "compile_seconds", "iqm")}
    return kept | {"peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def worker_rejax(agent: str, num_seeds: int, total_timesteps: int) -> dict[str, Any]:
    """rejax's agent with rlref's settings, threads as jax has them by default, without its evaluations."""
    import jax
    import rejax  # type: ignore[import-not-found]  # it has an environment of its own
    from flax import linen as nn

    num_seeds, total_timesteps = int(num_seeds), int(total_timesteps)
    common = {
        "env": "CartPole-v1",
        "total_timesteps": total_timesteps,
        "eval_freq": total_timesteps,
        "skip_initial_evaluation": True,
        "learning_rate": 2.5e-4,
        "gamma": 0.99,
    }
    if agent == "ppo":
        algorithm = rejax.PPO.create(
            **common,
            agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
            num_envs=4,
            num_steps=128,
            num_epochs=4,
            num_minibatches=4,
            gae_lambda=0.95,
            clip_eps=0.2,
            ent_coef=0.01,
            vf_coef=0.5,
            max_grad_norm=0.5,
        )
    else:
        algorithm = rejax.DQN.create(
            **common,
            num_envs=10,
            num_epochs=1,
            buffer_size=10_000,
            fill_buffer=10_000,
            batch_size=128,
            target_update_freq=500,
            polyak=0.0,
            eps_end=0.05,
            exploration_fraction=0.5,
            ddqn=False,
            max_grad_norm=float("inf"),
        )
        # Its own way to name a network does not let one choose the layers.
        network = rejax.networks.EpsilonGreedyPolicy(rejax.networks.DiscreteQNetwork)
        algorithm = algorithm.replace(agent=network(hidden_layer_sizes=(120, 84), action_dim=2, activation=nn.relu))
    algorithm = algorithm.replace(eval_callback=lambda *_: ())
    keys = jax.random.split(jax.random.key(0), num_seeds)
    start = time.monotonic()
    train = jax.jit(jax.vmap(type(algorithm).train, in_axes=(None, 0))).lower(algorithm, keys).compile()
    compiled = time.monotonic()
    jax.block_until_ready(train(algorithm, keys))
    seconds = time.monotonic() - compiled
    return {
        "steps_per_second": round(num_seeds * total_timesteps / seconds),
        "compile_seconds": round(compiled - start, 2),
    }


def worker_diagnostics(agent: str) -> dict[str, Any]:
    """Medians over 20 turns of updates past any warm-up, with all diagnostics and without: XLA drops what is unused."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from rlref.agents import load_agent  # importing rlref gives jax one CPU device per core

    module, count = load_agent(agent), {"ppo": 50, "dqn": 5}[agent]
    devices = jax.devices()[:8]
    mesh = jax.make_mesh((len(devices),), ("seed",), axis_types=(AxisType.Auto,), devices=devices)
    seeds = NamedSharding(mesh, P("seed"))
    built = module.make(config_of(agent))
    keys = jax.vmap(jax.random.key)(jnp.arange(8))
    state = jax.jit(jax.vmap(built.init), in_shardings=seeds, out_shardings=seeds)(keys)
    programs = {}
    for keep in (True, False):

        def updates(state: Any, keep: bool = keep) -> Any:
            def body(state: Any, step: jax.Array) -> Any:
                state, diagnostics = jax.vmap(built.update, in_axes=(0, None))(state, step)
                return state, diagnostics if keep else None

            return jax.lax.scan(body, state, 20 + jnp.arange(count))

        programs[keep] = jax.jit(updates, in_shardings=(seeds,)).lower(state).compile()
        jax.block_until_ready(programs[keep](state))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(20):
        for keep, program in programs.items():
            start = time.monotonic()
            jax.block_until_ready(program(state))
            seconds[keep].append(time.monotonic() - start)
    with_, without = statistics.median(seconds[True]), statistics.median(seconds[False])
    ms = 1000 / count
    return {"ms_per_update_with": ms * with_, "ms_per_update_without": ms * without, "cost": with_ / without - 1}


def worker_bytes() -> dict[str, Any]:
    """Bytes of one seed's state, and of one stored transition, as the shapes say."""
    import jax

    from rlref.agents import load_agent

    dqn = load_agent("dqn")

    def size(tree: Any) -> int:
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))

    found = {}
    for env_id, dtype in (("CartPole-v1", "same"), ("Breakout-MinAtar", "same"), ("Breakout-MinAtar", "bool")):
        config = dqn.Config(env_id=env_id, buffer_dtype=dtype)
        state = jax.eval_shape(dqn.make(config).init, jax.random.key(0))
        found[f"{env_id}, {dtype}"] = {
            "bytes_per_transition": size(state.buffer) / config.buffer_size,
            "bytes_per_seed": size(state),
        }
    return found


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": worker_ours,
    "rejax": worker_rejax,
    "diagnostics": worker_diagnostics,
    "bytes": worker_bytes,
}


def start(python: Path | str, name: str, *arguments: str | int) -> dict[str, Any]:
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


def measure_rejax(agent: str) -> dict[str, Any]:
    python, ours, theirs = rejax_python(), [], []
    for turn in range(REPEATS):
        ours.append(start(sys.executable, "ours", agent, 8, TIMESTEPS))
        theirs.append(start(python, "rejax", agent, 8, TIMESTEPS))
        rates = ours[-1]["steps_per_second"], theirs[-1]["steps_per_second"]
        print(
            f"turn {turn + 1}: rlref {rates[0]:,}, rejax {rates[1]:,} steps/s, ratio {rates[0] / rates[1]:.2f}",
            flush=True,
        )
    ratio = statistics.median(a["steps_per_second"] / b["steps_per_second"] for a, b in zip(ours, theirs, strict=True))
    print(f"median ratio {ratio:.2f} (target: {RATIO[agent]})")
    return {"rlref": ours, "rejax": theirs, "ratio": ratio}


def measure_diagnostics(agent: str) -> dict[str, Any]:
    result = start(sys.executable, "diagnostics", agent)
    print(
        f"one update of 8 seeds: {result['ms_per_update_with']:.2f} ms with diagnostics, "
        f"{result['ms_per_update_without']:.2f} ms without: {100 * result['cost']:.1f} % (target: at most 5 %)"
    )
    return result


def measure_memory(agent: str) -> list[dict[str, Any]]:
    results = []
    for timesteps in (100_000, TIMESTEPS):
        results.append({"timesteps": timesteps, **start(sys.executable, "ours", agent, 64, timesteps)})
        updates = timesteps // 512
        print(f"64 seeds, {updates} updates: peak {results[-1]['peak_rss_mb']:,} MB")
    growth = results[1]["peak_rss_mb"] - results[0]["peak_rss_mb"]
    metrics = 64 * (TIMESTEPS - 100_000) // 512 * 50 * 4 / 1e6
    print(f"growth {growth} MB, of which {metrics:.0f} MB are the additional updates' metrics")
    return results


def measure_seeds(agent: str) -> dict[str, Any]:
    """The same training with more and more seeds; what a seed costs, in time and in memory."""
    rows = []
    for num_seeds in (1, 4, 16, 64, 256):
        row = start(sys.executable, "ours", agent, num_seeds, 40_000)
        row = {"seeds": num_seeds, "seconds_per_seed": 40_000 / row["steps_per_second"], **row}
        rows.append(row)
        print(
            f"{num_seeds} seeds: {row['steps_per_second']:,} steps/s, {row['seconds_per_seed']:.2f} s per seed of "
            f"40,000 steps, peak {row['peak_rss_mb']:,} MB",
            flush=True,
        )
    sizes = start(sys.executable, "bytes")
    for name, x in sizes.items():
        print(f"{name}: {x['bytes_per_transition']:.0f} bytes per transition, {x['bytes_per_seed']:,} bytes per seed")
    return {"runs": rows, "bytes": sizes}


RATIO = {"ppo": 2.8, "dqn": 2.5}
MEASURES: dict[str, Callable[[str], Any]] = {
    "ppo/rejax": measure_rejax,
    "ppo/diagnostics": measure_diagnostics,
    "ppo/memory": measure_memory,
    "dqn/rejax": measure_rejax,
    "dqn/diagnostics": measure_diagnostics,
    "dqn/seeds": measure_seeds,
}


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](*sys.argv[3:])))
        return
    names = sys.argv[1:] or list(MEASURES)
    if unknown := set(names) - set(MEASURES):
        sys.exit(f"there is no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    path = HERE / "results" / "speed.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        results[name] = MEASURES[name](name.partition("/")[0])
        results["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
