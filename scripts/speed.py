"""Speed and memory, each as a ratio within one run: `python scripts/speed.py [NAME ...]`.

    ppo/rejax, dqn/rejax   CartPole-v1, 8 seeds of 5e5 steps, the same settings, against rejax 0.1.3 with gymnax 0.0.9
                           (in an environment of its own, made on first use), in turn, compilation apart
    ppo/diagnostics, dqn/diagnostics
                           one update with all diagnostics against the same update with them dropped, in turn
    ppo/memory             peak memory of 64 seeds, for 1e5 and for 5e5 steps
    dqn/seeds              steps/s and memory from 1 to 256 seeds; bytes of a seed and of a stored transition
    cem/rollout            a generation of 8 seeds against its rollouts alone, and against bare environments, in turn
    cem/diagnostics        as above, and with the evaluation on fresh keys alone, which is dropped with them

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
from functools import partial
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
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from rlref.agents import load_agent  # importing rlref gives jax one CPU device per core

    module, count, first = load_agent(agent), *{"ppo": (50, 20), "dqn": (5, 20), "cem": (10, 5)}[agent]
    mesh = seed_mesh()
    seeds = NamedSharding(mesh, P("seed"))
    built = module.make(config_of(agent))
    keys = jax.vmap(jax.random.key)(jnp.arange(8))
    state = jax.jit(jax.vmap(built.init), in_shardings=seeds, out_shardings=seeds)(keys)
    kept = {"with": None, "without": (), **({"evaluation": ("mean_policy_return",)} if agent == "cem" else {})}
    programs = {}
    for what, names in kept.items():

        def updates(state: Any, names: tuple[str, ...] | None = names) -> Any:
            def body(state: Any, step: jax.Array) -> Any:
                state, diagnostics = jax.vmap(built.update, in_axes=(0, None))(state, step)
                return state, diagnostics if names is None else {name: diagnostics[name] for name in names}

            return jax.lax.scan(body, state, first + jnp.arange(count))

        specs = P("seed"), P(None, "seed")
        by_device = jax.shard_map(updates, mesh=mesh, in_specs=P("seed"), out_specs=specs, check_vma=False)
        programs[what] = jax.jit(by_device).lower(state).compile()
    seconds = dict(zip(programs, medians([partial(program, state) for program in programs.values()]), strict=True))
    result = {f"ms_per_update_{what}": 1000 / count * x for what, x in seconds.items()}
    return result | {"cost": seconds["with"] / seconds.get("evaluation", seconds["without"]) - 1}


def seed_mesh() -> Any:
    """The devices that 8 seeds are spread over, at most one each."""
    import jax
    from jax.sharding import AxisType

    devices = jax.devices()[:8]
    return jax.make_mesh((len(devices),), ("seed",), axis_types=(AxisType.Auto,), devices=devices)


def medians(functions: list[Callable[[], Any]]) -> list[float]:
    """Seconds of each of some functions, the median of 20 turns of all of them."""
    import jax

    seconds: list[list[float]] = [[] for _ in functions]
    for turn in range(21):
        for f, found in zip(functions, seconds, strict=True):
            start = time.monotonic()
            jax.block_until_ready(f())
            if turn:  # the first is a warm-up
                found.append(time.monotonic() - start)
    return [statistics.median(x) for x in seconds]


def worker_rollout(env_id: str, settings: str) -> dict[str, Any]:
    """Milliseconds of CEM's eighth generation, of its rollouts alone, and of stepping as many bare environments."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from rlref import cem, envs

    wanted: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(settings).items()}
    config = cem.Config(env_id=env_id, **wanted)
    env, env_params = envs.make_env(env_id)
    agent = cem.make(config, env, env_params)
    task = agent.init.args[0]  # type: ignore[attr-defined]  # `make` binds it there
    mesh = seed_mesh()

    def over_seeds(f: Callable[..., Any]) -> Any:
        by_device = jax.shard_map(jax.vmap(f), mesh=mesh, in_specs=P("seed"), out_specs=P("seed"), check_vma=False)
        return jax.jit(by_device)

    def rollouts(state: Any) -> Any:
        """The very same episodes as in cem.update."""
        _, key_noise, key_rollout, _, _ = jax.random.split(state.key, 5)
        keys = jax.random.split(key_rollout, config.num_rollouts)
        noise = jax.random.normal(key_noise, (config.population_size, task.num_params))
        return cem.rollout(task, state.mean + jnp.sqrt(state.variance) * noise, keys)[:2]

    def bare(x: Any) -> Any:
        """As many environments on as many keys for as many steps as the loop of a device takes; actions are 0."""
        state, steps = x
        keys = jax.random.split(jax.random.split(state.key, 5)[2], config.num_rollouts)
        _, start = jax.vmap(env.reset, (0, None))(keys, env_params)
        start = jax.vmap(lambda _: start)(jnp.zeros(config.population_size))
        env_step = jax.vmap(jax.vmap(env.step, (0, 0, None, None)), (None, 0, None, None))
        space = env.action_space(env_params)
        action = jnp.zeros(space.shape, space.dtype)

        def step(t: jax.Array, carry: Any) -> Any:
            env_state, total = carry
            keys_t = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
            _, env_state, reward, *_ = env_step(keys_t, env_state, action, env_params)
            return env_state, total + reward

        total = jnp.zeros((config.population_size, config.num_rollouts))
        return jax.lax.fori_loop(0, steps, step, (start, total))[1]

    state = over_seeds(agent.init)(jax.vmap(jax.random.key)(jnp.arange(8)))
    update = over_seeds(lambda x: agent.update(*x))
    for generation in range(7):
        state, _ = update((state, jnp.full(8, generation)))
    arguments = state, jnp.full(8, 7)
    before = float(state.env_steps.sum())
    env_steps = float(update(arguments)[0].env_steps.sum()) - before
    rollout, environments = over_seeds(rollouts), over_seeds(bare)
    longest = rollout(state)[1].max(axis=(1, 2)).reshape(len(mesh.devices), -1).max(axis=1)
    steps = jnp.repeat(longest, 8 // len(mesh.devices))
    times = medians([lambda: update(arguments), lambda: rollout(state), lambda: environments((state, steps))])
    names = ("generation", "rollouts", "environments")
    return {"steps": env_steps, **{f"{name}_ms": 1000 * x for name, x in zip(names, times, strict=True)}}


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
    "rollout": worker_rollout,
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
    evaluated = result.get("ms_per_update_evaluation")
    apart = "" if evaluated is None else f" ({evaluated:.2f} ms with the evaluation, which is counted apart)"
    print(
        f"one update of 8 seeds: {result['ms_per_update_with']:.2f} ms with diagnostics, "
        f"{result['ms_per_update_without']:.2f} ms without{apart}: {100 * result['cost']:.1f} % (target: at most 5 %)"
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


def measure_rollout(agent: str) -> dict[str, Any]:
    """What is left of the environments' speed."""
    rows = {}
    pendulum = {"population_size": 256, "num_rollouts": 16, "hidden_sizes": [8], "num_generations": 60}
    for env_id, settings in (("CartPole-v1", {}), ("Pendulum-v1", pendulum)):
        row = start(sys.executable, "rollout", env_id, json.dumps(settings))
        rows[env_id] = row | {
            "steps_per_second": row["steps"] / row["generation_ms"] * 1000,
            "kept_of_rollouts": row["rollouts_ms"] / row["generation_ms"],
            "kept_of_environments": row["environments_ms"] / row["generation_ms"],
        }
        r = rows[env_id]
        print(
            f"{env_id}: {r['steps_per_second']:,.0f} steps/s; a generation takes {r['generation_ms']:.1f} ms, its "
            f"rollouts alone {r['rollouts_ms']:.1f} ({100 * r['kept_of_rollouts']:.0f} % of their speed is kept), the "
            f"bare environments {r['environments_ms']:.1f} ({100 * r['kept_of_environments']:.0f} %)"
        )
    return rows


RATIO = {"ppo": 2.8, "dqn": 2.5}
MEASURES: dict[str, Callable[[str], Any]] = {
    "ppo/rejax": measure_rejax,
    "ppo/diagnostics": measure_diagnostics,
    "ppo/memory": measure_memory,
    "dqn/rejax": measure_rejax,
    "dqn/diagnostics": measure_diagnostics,
    "dqn/seeds": measure_seeds,
    "cem/rollout": measure_rollout,
    "cem/diagnostics": measure_diagnostics,
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
