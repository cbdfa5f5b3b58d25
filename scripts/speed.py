"""Speed and memory: `python scripts/speed.py [NAME ...]`; comparisons are ratios within one run, in turns.

    AGENT/seeds        1 to 4096 seeds (on an accelerator from 8) of CartPole-v1: environment steps/s of training, all
                       of it and once it goes, and of as many bare environments under random actions, seconds of
                       compiling and from the start of the process to the first update, memory: what was planned for
                       the seeds, and the peak (of the process; on an accelerator, of the device)
    AGENT/first        seconds from `rlref train AGENT` to the first update, nothing compiled before; and again
    AGENT/diagnostics  one update with all diagnostics against the same update with them dropped; of CEM also with
                       nothing but the evaluation on fresh keys, which is dropped with them
    AGENT/layout       64 seeds as they are trained; all of a core's rows at once; with all of XLA's optimisations
    AGENT/exact        on an accelerator, 512 seeds: matrix products in full float32; deterministic kernels
    ppo/rejax, dqn/rejax
                       CartPole-v1, 8 seeds, the same settings, against rejax 0.1.3 with gymnax 0.0.9 (in an environment
                       of its own, made on first use), compilation apart
    ppo/peak           8 seeds: matrix products' operations per second, as a fraction of what products alone reach; and
                       those of a hidden layer alone: forwards, and the gradients at its inputs and at its weights
    ppo/memory         peak memory of 64 seeds, for 1e5 and for 5e5 steps
    ppo/large          8 seeds with rollouts of 64 x 1,024 large observations: memory, planned and used
    dqn/bytes          bytes of a seed and of a stored transition
    cem/rollout        a generation of 8 seeds against its rollouts alone, and against bare environments

    --against COMMIT   instead, updates of 8 and of 64 seeds against those of the agents' files of that commit, in turns

Without a name, all of them, in an hour or two on two cores; on an accelerator those that mean something there, in about
eight minutes. Results go to scripts/results/speed.json, their tables to speed.md, and steps/s over the number of
seeds to speed.png; of an accelerator to speed-gpu.json, or whatever jax calls its platform. Leave the machine alone
while it runs.
"""

import argparse
import contextlib
import functools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import page
from accelerator import agents_of
from peer_environments import python_with

HERE = Path(__file__).resolve().parent
REPEATS = 3
TIMESTEPS = 200_000  # of a seed, against rejax
LENGTH = {"cem": "num_generations"}
LENGTHS: dict[str, dict[int, int]] = {  # of trainings, by the number of seeds
    "ppo": {1: 100_000, 8: 100_000, 64: 40_000, 512: 20_000, 4096: 10_000},
    "dqn": {1: 100_000, 8: 100_000, 64: 40_000, 512: 20_000, 4096: 12_000},
    "cem": {1: 15, 8: 15, 64: 15, 512: 15, 4096: 15},
}
ACCELERATED: dict[str, dict[int, int]] = {
    "ppo": {8: 1_000_000, 64: 500_000, 512: 200_000, 4096: 40_000},
    "dqn": {8: 500_000, 64: 250_000, 512: 80_000, 4096: 15_000},
    "cem": {8: 300, 64: 200, 512: 100, 4096: 30},
}
LARGE: dict[str, Any] = {"env_id": "Breakout-MinAtar", "num_envs": 64, "num_steps": 1024, "num_minibatches": 16}


def config_of(agent: str, **settings: Any) -> Any:
    """The settings that are measured: the defaults, and for DQN the plain maximum, as in PureJaxRL."""
    from rlref.contract import load_agent

    return load_agent(agent).Config(**({"target": "max"} if agent == "dqn" else {}), **settings)


def worker_ours(agent: str, num_seeds: int, length: int, layout: str = "", settings: str = "{}") -> dict[str, Any]:
    """Train through the public interface; steps/s and compile time as the run reports them, and more.

    `length` is in environment steps of a seed, of CEM in generations; `settings` is JSON. With `layout`: "whole" for
    all of a device's rows at once, "optimised" for all of XLA's optimisations.
    """
    import jax
    import numpy as np
    import psutil

    import rlref
    from rlref.runs import compiling, programs
    from rlref.runs.display import Silent
    from rlref.runs.plan import job_bytes

    class Watch(Silent):
        first: float | None = None

        def progress(self, done: int, total: int, metrics: Any, verdict: Any) -> None:
            if self.first is None:
                self.first = time.time() - psutil.Process().create_time()

    if layout == "whole":
        programs.rows_at_once = lambda job, rows, mesh=None: rows
    if layout == "optimised":
        compiling.options = lambda level, mesh=None: None
    watch = Watch()
    config = config_of(agent, **{LENGTH.get(agent, "total_timesteps"): int(length)}, **json.loads(settings))
    run = rlref.train(agent, config, num_seeds=int(num_seeds), display=watch)
    kept: dict[str, Any] = {k: run.summary[k] for k in ("steps_per_second", "compile_seconds", "iqm", "seconds")}
    speeds = run.metrics["steps_per_second"][0]
    memory = jax.devices()[0].memory_stats() or {}
    assert run.trained is not None
    return kept | {
        "steps_per_second_once_going": round(float(np.median(speeds[len(speeds) // 2 :]))),
        "first_update_seconds": round(watch.first or 0, 2),
        "planned_mb": round(int(num_seeds) * job_bytes(run.trained.job, True) / 1e6),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        **({"peak_device_mb": round(memory["peak_bytes_in_use"] / 1e6)} if memory else {}),
    }


def worker_first(agent: str) -> dict[str, Any]:
    """Seconds from the start of this process, which does what `rlref train` does, to the first update displayed.

    And where they go: before anything is traced (Python, imports, settings), XLA (or reading what it compiled), tracing
    and lowering while XLA does nothing, and all else, the first update's own run among it.
    """
    import jax.monitoring
    import psutil

    from rlref.cli import main
    from rlref.cli.terminal import Terminal

    began = psutil.Process().create_time()
    found: list[float] = []
    traced: list[tuple[float, float]] = []
    by_xla: list[tuple[float, float]] = []
    stages = {
        "jaxpr_trace_duration": traced,
        "jaxpr_to_mlir_module_duration": traced,
        "backend_compile_duration": by_xla,
    }

    def compiled(event: str, duration_secs: float, **_: str | int) -> None:
        now, stage = time.time() - began, event.rpartition("/")[2]
        if stage in stages and not found:
            stages[stage].append((now - duration_secs, now))

    jax.monitoring.register_event_duration_secs_listener(compiled)
    Terminal.progress = lambda *_: found.append(time.time() - began)  # type: ignore[method-assign]
    length = ["--num-generations", "3"] if agent == "cem" else ["--total-timesteps", "20480"]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        main(["train", agent, *length, "--run-dir", f"{folder}/run"])
    compiling = covered(by_xla)
    parts = {
        "imports": min(traced + by_xla)[0],
        "tracing": covered(traced + by_xla) - compiling,
        "compiling": compiling,
    }
    return {"first_update_seconds": found[0], **parts, "rest": found[0] - sum(parts.values())}


def covered(spans: list[tuple[float, float]]) -> float:
    """Seconds within spans from start to end, which may lie within each other, and beside each other."""
    total = reached = 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def worker_bare(agent: str, num_seeds: int) -> dict[str, Any]:
    """Steps/s of as many environments as that many seeds of an agent step side by side, under random actions."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from rlref.envs.ids import make_env

    config, num_seeds = config_of(agent), int(num_seeds)
    side_by_side = config.population_size * config.num_rollouts if agent == "cem" else config.num_envs
    env, params = make_env(config.env_id)
    mesh = seed_mesh(num_seeds)
    count, steps = num_seeds * side_by_side, 200
    space = env.action_space(params)

    def rollout(keys: jax.Array) -> jax.Array:
        _, state = jax.vmap(env.reset, (0, None))(keys, params)

        def step(carry: Any, t: jax.Array) -> tuple[Any, jax.Array]:
            keys_t = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
            _, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(
                keys_t, carry, jax.vmap(space.sample)(keys_t), params
            )
            return state, reward.sum()

        return jax.lax.scan(step, state, jnp.arange(steps))[1][None]

    by_device = jax.shard_map(rollout, mesh=mesh, in_specs=P("seed"), out_specs=P("seed"), check_vma=False)
    program = jax.jit(by_device)  # with all of XLA's optimisations: as fast as they get
    keys = jax.vmap(jax.random.key)(jnp.arange(count))
    (seconds,) = medians([lambda: program(keys)], turns=5)
    return {"bare_steps_per_second": round(count * steps / seconds)}


def worker_peak(agent: str) -> dict[str, Any]:
    """Matrix products' operations per second of an update's, and what products alone reach on the same devices.

    Counted are the products of the default network, two operations a multiplication: the actor once in the rollout, the
    critic before and after each step, both forwards and backwards in each epoch (twice as much as forwards, less the
    gradient at the observations), and both once more for the diagnostics, on one minibatch.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from rlref import ppo
    from rlref.runs import compiling

    config, updates = ppo.Config(), 50
    hidden, features, actions = 64, 4, 2
    torso = features * hidden + hidden * hidden
    actor, critic = torso + hidden * actions, torso + hidden
    learning = config.update_epochs * (3 * (actor + critic) - 2 * features * hidden)
    per_step = 2 * (actor + 2 * critic + learning + (actor + critic) / config.num_minibatches)
    mesh = seed_mesh()
    seeds = NamedSharding(mesh, P("seed"))
    built = ppo.make(config)
    keys = jax.vmap(jax.random.key)(jnp.arange(8))
    state = jax.jit(jax.vmap(built.init), in_shardings=seeds, out_shardings=seeds)(keys)

    def train(state: Any) -> Any:
        return jax.lax.scan(lambda s, t: jax.vmap(built.update, (0, None))(s, t), state, jnp.arange(updates))

    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "forwards": lambda x, y: (jnp.einsum("sij,sjk->sik", x, y) / y.shape[1], y),
        "at inputs": lambda x, y: (jnp.einsum("sij,skj->sik", x, y) / y.shape[1], y),
        "at weights": lambda x, y: (x, jnp.einsum("sij,sik->sjk", x, x + y[:, :1]) / 1e4),
    }

    def products(kind: str, repeats: int, x: jax.Array, y: jax.Array) -> Any:
        return jax.lax.fori_loop(0, repeats, lambda _, carry: kinds[kind](*carry), (x, y))

    def over_devices(f: Callable[..., Any], arguments: int) -> Any:
        specs = (P("seed"),) * arguments
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P("seed"), check_vma=False))

    specs = P("seed"), P(None, "seed")
    by_device = jax.shard_map(train, mesh=mesh, in_specs=P("seed"), out_specs=specs, check_vma=False)
    training = jax.jit(by_device).lower(state).compile(compiling.options(compiling.LOOP))
    programs, operations = [partial(training, state)], []
    shapes = [
        *((kind, 8, 128, 64) for kind in kinds),
        ("forwards", 8, 512, 64),
        ("forwards", len(mesh.devices), 512, 512),
    ]
    for kind, batch, rows, columns in shapes:
        x, y = jnp.ones((batch, rows, columns)), jnp.ones((batch, columns, columns))
        once = 2 * batch * rows * columns * columns
        repeats = int(2e10 / once)
        operations.append(repeats * once)
        programs.append(partial(over_devices(partial(products, kind, repeats), 2), *jax.device_put((x, y), seeds)))
    own, *alone = medians(programs)
    speeds = [n / seconds for n, seconds in zip(operations, alone, strict=True)]
    by_layer = {kind: x / 1e9 for kind, x in zip(kinds, speeds, strict=False)}
    reached = 8 * config.num_envs * config.num_steps * updates * per_step / own
    peak = max(speeds)
    return {"gflops": reached / 1e9, "peak_gflops": peak / 1e9, "fraction": reached / peak, "layer_gflops": by_layer}


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

    from rlref.contract import load_agent  # importing rlref gives jax one CPU device per core
    from rlref.runs import compiling

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
        programs[what] = jax.jit(by_device).lower(state).compile(compiling.options(compiling.LOOP))
    seconds = dict(zip(programs, medians([partial(program, state) for program in programs.values()]), strict=True))
    result = {f"ms_per_update_{what}": 1000 / count * x for what, x in seconds.items()}
    return result | {"cost": seconds["with"] / seconds.get("evaluation", seconds["without"]) - 1}


def worker_against(agent: str, file: str) -> dict[str, Any]:
    """Updates of this tree's agent against those of another file of it, in turns: ratio of times, and its quartiles."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from rlref.contract import load_agent
    from rlref.runs import compiling

    found = {}
    for num_seeds in (8, 64):
        count, first = {"ppo": (80, 20), "dqn": (8, 20), "cem": (16, 5)}[agent]
        mesh, programs = seed_mesh(num_seeds), []
        seeds = NamedSharding(mesh, P("seed"))
        for module in (load_agent(agent), load_agent(file)):
            built = module.make(module.Config())
            keys = jax.vmap(jax.random.key)(jnp.arange(num_seeds))
            state = jax.jit(jax.vmap(built.init), in_shardings=seeds, out_shardings=seeds)(keys)
            steps = first + jnp.arange(max(1, count * 8 // num_seeds))

            def updates(state: Any, built: Any = built, steps: Any = steps) -> Any:
                return jax.lax.scan(lambda s, t: jax.vmap(built.update, (0, None))(s, t), state, steps)

            specs = P("seed"), P(None, "seed")
            by_device = jax.shard_map(updates, mesh=mesh, in_specs=P("seed"), out_specs=specs, check_vma=False)
            programs.append(partial(jax.jit(by_device).lower(state).compile(compiling.options(compiling.LOOP)), state))
        ratios = []
        for turn in range(41):
            seconds = []
            for program in programs[:: 1 if turn % 2 else -1]:
                start = time.monotonic()
                jax.block_until_ready(program())
                seconds.append(time.monotonic() - start)
            if turn:
                ours, theirs = seconds[:: 1 if turn % 2 else -1]
                ratios.append(ours / theirs)
        low, median, high = (float(x) for x in np.quantile(ratios, (0.25, 0.5, 0.75)))
        found[str(num_seeds)] = {"ratio": median, "low": low, "high": high}
    return found


def seed_mesh(num_seeds: int = 8) -> Any:
    """The devices that seeds are spread over, as many on each."""
    import jax
    from jax.sharding import AxisType

    most = min(num_seeds, len(jax.devices()))
    devices = jax.devices()[: max(n for n in range(1, most + 1) if num_seeds % n == 0)]
    return jax.make_mesh((len(devices),), ("seed",), axis_types=(AxisType.Auto,), devices=devices)


def medians(functions: Sequence[Callable[[], Any]], turns: int = 20) -> list[float]:
    """Seconds of each of some functions, the median of `turns` turns of all of them, after one to warm up."""
    import jax

    seconds: list[list[float]] = [[] for _ in functions]
    for turn in range(turns + 1):
        for f, found in zip(functions, seconds, strict=True):
            start = time.monotonic()
            jax.block_until_ready(f())
            if turn:
                found.append(time.monotonic() - start)
    return [statistics.median(x) for x in seconds]


def worker_rollout(env_id: str, settings: str) -> dict[str, Any]:
    """Milliseconds of CEM's eighth generation, of its rollouts alone, and of stepping as many bare environments."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from rlref import cem
    from rlref.envs.ids import make_env
    from rlref.runs import compiling

    wanted: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(settings).items()}
    config = cem.Config(env_id=env_id, **wanted)
    env, env_params = make_env(env_id)
    agent = cem.make(config, env, env_params)
    task = agent.init.args[0]  # type: ignore[attr-defined]  # `make` binds it there
    mesh = seed_mesh()

    def over_seeds(f: Callable[..., Any]) -> Any:
        by_device = jax.shard_map(jax.vmap(f), mesh=mesh, in_specs=P("seed"), out_specs=P("seed"), check_vma=False)
        return jax.jit(by_device, compiler_options=compiling.options(compiling.LOOP))

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

    from rlref.contract import load_agent

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


def worker_seeds(agent: str, num_seeds: int, length: int) -> dict[str, Any]:
    """`worker_ours`, and then `worker_bare`."""
    return worker_ours(agent, num_seeds, length) | worker_bare(agent, num_seeds)


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "seeds": worker_seeds,
    "ours": worker_ours,
    "first": worker_first,
    "peak": worker_peak,
    "rejax": worker_rejax,
    "diagnostics": worker_diagnostics,
    "bytes": worker_bytes,
    "against": worker_against,
    "rollout": worker_rollout,
}


def start(python: Path | str, name: str, *arguments: str | int, **variables: str) -> dict[str, Any]:
    """Run a worker in a process of its own, with environment variables on top."""
    command = [str(python), str(Path(__file__).resolve()), "--worker", name, *map(str, arguments)]
    environment = os.environ | variables
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_against(agent: str, commit: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        agents_of(commit, folder)
        found = start(sys.executable, "against", agent, f"{folder}/{agent}.py")
    for num_seeds, x in found.items():
        print(f"{agent}, {num_seeds} seeds: {x['ratio']:.3f} x the time of {commit} [{x['low']:.3f}, {x['high']:.3f}]")
    return found


def measure_rejax(agent: str) -> dict[str, Any]:
    packages = ("rejax==0.1.3", "gymnax==0.0.9", f"jax=={version('jax')}")
    python, ours, theirs = python_with("rejax", *packages, seconds=600), [], []
    for turn in range(REPEATS):
        ours.append(start(sys.executable, "ours", agent, 8, TIMESTEPS))
        theirs.append(start(python, "rejax", agent, 8, TIMESTEPS))
        rates = ours[-1]["steps_per_second"], theirs[-1]["steps_per_second"]
        print(
            f"turn {turn + 1}: rlref {rates[0]:,}, rejax {rates[1]:,} steps/s, ratio {rates[0] / rates[1]:.2f}",
            flush=True,
        )
    return {"rlref": ours, "rejax": theirs, **spread(ours, theirs)}


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
    for timesteps in (100_000, 500_000):
        results.append({"timesteps": timesteps, **start(sys.executable, "ours", agent, 64, timesteps)})
        updates = timesteps // 512
        print(f"64 seeds, {updates} updates: peak {results[-1]['peak_rss_mb']:,} MB")
    growth = results[1]["peak_rss_mb"] - results[0]["peak_rss_mb"]
    metrics = 64 * (500_000 - 100_000) // 512 * 50 * 4 / 1e6
    print(f"growth {growth} MB, of which {metrics:.0f} MB are the additional updates' metrics")
    return results


def measure_large(agent: str) -> dict[str, Any]:
    length = 4 * LARGE["num_envs"] * LARGE["num_steps"]
    row = start(sys.executable, "ours", agent, 8, length, "", json.dumps(LARGE))
    print(f"8 seeds of {LARGE}: {row['planned_mb']:,} MB planned, peak {peak_mb(row):,} MB")
    return row


def spread(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], what: str = "steps_per_second"
) -> dict[str, float]:
    """The ratio of `what`, turn by turn: median, least and greatest."""
    found = [a[what] / b[what] for a, b in zip(ours, theirs, strict=True)]
    print(f"ratio {statistics.median(found):.2f}, from {min(found):.2f} to {max(found):.2f}", flush=True)
    return {"ratio": statistics.median(found), "least": min(found), "greatest": max(found)}


def measure_seeds(agent: str) -> list[dict[str, Any]]:
    """The same training with more and more seeds."""
    rows = []
    lengths = LENGTHS if accelerator() is None else ACCELERATED
    for num_seeds, length in lengths[agent].items():
        with tempfile.TemporaryDirectory() as cache:
            row = start(sys.executable, "seeds", agent, num_seeds, length, JAX_COMPILATION_CACHE_DIR=cache)
        rows.append({"seeds": num_seeds, **row})
        print(
            f"{num_seeds} seeds: {row['steps_per_second']:,} steps/s, {row['steps_per_second_once_going']:,} once it "
            f"goes, {row['bare_steps_per_second']:,} of bare ones; {row['compile_seconds']:.1f} s of compiling, "
            f"first update after {row['first_update_seconds']:.1f} s; {row['planned_mb']:,} MB planned, "
            f"peak {peak_mb(row):,} MB; {row['seconds']}",
            flush=True,
        )
    return rows


def peak_mb(row: dict[str, Any]) -> int:
    """Of the device where that is known, else of the process."""
    return row.get("peak_device_mb", row["peak_rss_mb"])


@functools.cache
def accelerator() -> tuple[str, str] | None:
    """Its platform, such as "gpu", and its name; None where there is none.

    Asked in another process, which gives it free again.
    """
    code = "import jax; print(jax.default_backend()); print(jax.devices()[0].device_kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    platform, name = done.stdout.splitlines()[-2:]
    return None if platform == "cpu" else (platform, name)


def measure_first(agent: str) -> dict[str, Any]:
    """From the command to the first update, with an empty compile cache and with a full one."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "cached": []}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            for rows in found.values():
                rows.append(start(sys.executable, "first", agent, JAX_COMPILATION_CACHE_DIR=cache))
    median = {name: sorted(rows, key=lambda x: x["first_update_seconds"])[REPEATS // 2] for name, rows in found.items()}
    result: dict[str, Any] = {name: row["first_update_seconds"] for name, row in median.items()}
    parts = {name: {k: x for k, x in row.items() if k != "first_update_seconds"} for name, row in median.items()}
    for name, row in parts.items():
        print(f"{agent}, {name}: {result[name]:.1f} s: {parts_in_words(row)}")
    print(
        f"first update after {result['cold']:.1f} s cold (target: 7), {result['cached']:.1f} s with the compile cache "
        "(target: 3.5)"
    )
    return result | {"parts": parts, "runs": found}


def parts_in_words(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {x:.1f}" for name, x in parts.items())


def measure_layout(agent: str) -> dict[str, Any]:
    """What training in blocks of rows, and compiling with less optimisation, are worth."""
    runs: dict[str, list[dict[str, Any]]] = {"": [], "whole": [], "optimised": []}
    with tempfile.TemporaryDirectory() as cache:
        for turn in range(REPEATS):
            # A cache of its own for each turn: what compiling takes is measured too.
            folder = str(Path(cache) / str(turn))
            for layout, rows in runs.items():
                length = 15 if agent == "cem" else 20_480
                rows.append(start(sys.executable, "ours", agent, 64, length, layout, JAX_COMPILATION_CACHE_DIR=folder))
    result = {}
    for layout in ("whole", "optimised"):
        print(f"64 seeds, against {layout}: steps/s", end=" ")
        result[layout] = spread(runs[""], runs[layout])
    seconds = {layout: statistics.median(row["compile_seconds"] for row in rows) for layout, rows in runs.items()}
    print(f"{seconds['']:.1f} s of compiling, {seconds['optimised']:.1f} s with all optimisations")
    return result | {"compile_seconds": seconds[""], "compile_seconds_optimised": seconds["optimised"]}


EXACT = {
    "highest": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    "deterministic": {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
}


def measure_exact(agent: str) -> dict[str, Any]:
    """What exactness costs: the speed once it goes, against that without."""
    variants: dict[str, dict[str, str]] = {"": {}, **EXACT}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    length = ACCELERATED[agent][512]
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(REPEATS):
            for name, variables in variants.items():
                row = start(sys.executable, "ours", agent, 512, length, JAX_COMPILATION_CACHE_DIR=cache, **variables)
                runs[name].append(row)
    result = {}
    for name in EXACT:
        print(f"512 seeds, {name}: steps/s", end=" ")
        result[name] = spread(runs[name], runs[""], "steps_per_second_once_going")
    return result


def measure_peak(agent: str) -> dict[str, Any]:
    result = start(sys.executable, "peak", agent)
    print(
        f"{result['gflops']:.0f} GFLOP/s in matrix products, of {result['peak_gflops']:.0f} by products alone: "
        f"{100 * result['fraction']:.0f} % (target: 45 %); of a hidden layer alone: {of_a_layer(result)}"
    )
    return result


def of_a_layer(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {x:.0f}" for name, x in result["layer_gflops"].items())


def measure_bytes(agent: str) -> dict[str, Any]:
    sizes = start(sys.executable, "bytes")
    for name, x in sizes.items():
        print(f"{name}: {x['bytes_per_transition']:.0f} bytes per transition, {x['bytes_per_seed']:,} bytes per seed")
    return sizes


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


def figure(results: dict[str, Any], path: Path) -> None:
    """Steps/s over the number of seeds: training solid, bare environments dotted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    if not any(name.endswith("/seeds") for name in results):
        return
    fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, agent in enumerate(("ppo", "dqn", "cem")):
        if (rows := results.get(f"{agent}/seeds")) is None:
            continue
        seeds = [row["seeds"] for row in rows]
        ax.plot(seeds, [r["steps_per_second"] for r in rows], f"C{number}o-", label=f"{agent.upper()}, training")
        bare = [r["bare_steps_per_second"] for r in rows]
        ax.plot(seeds, bare, f"C{number}o:", label=f"{agent.upper()}, its environments alone", alpha=0.6)
    ax.set(xscale="log", yscale="log", xlabel="seeds", ylabel="environment steps per second")
    machines = {machine.split(", load")[0] for name, machine in results["machine"].items() if name.endswith("/seeds")}
    ax.set_title(f"CartPole-v1, {' and '.join(sorted(machines))}", fontsize=9)
    ax.grid(alpha=0.3)
    fig.legend(fontsize=8, loc="outside lower center", ncols=3)
    fig.savefig(path, dpi=110)


def report(results: dict[str, Any]) -> str:
    """Two tables: over the number of seeds, and everything else."""
    lines = [
        "| agent | seeds | steps/s | once it goes | of its environments alone | compiling | first update | planned | "
        "peak memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for agent in ("ppo", "dqn", "cem"):
        lines += [
            f"| {agent.upper()} | {r['seeds']} | {r['steps_per_second']:,} | {r['steps_per_second_once_going']:,} | "
            f"{r['bare_steps_per_second']:,} | {r['compile_seconds']:.1f} s | {r['first_update_seconds']:.1f} s | "
            f"{r['planned_mb']:,} MB | {peak_mb(r):,} MB |"
            for r in results.get(f"{agent}/seeds", ())
        ]
    lines += ["", "| | measured | target |", "|---|---|---|"]

    def row(what: str, measured: str, target: str = "", reached: bool = True) -> None:
        lines.append(f"| {what} | {measured} | {target if reached else f'{target}: MISSED'} |")

    for agent in ("ppo", "dqn", "cem"):
        found = {name: results[f"{agent}/{name}"] for name in KINDS if f"{agent}/{name}" in results}
        a = agent.upper()
        if r := found.get("rejax"):
            rates = [[x["steps_per_second"] for x in r[who]] for who in ("rlref", "rejax")]
            both = " against ".join(f"{min(x):,} to {max(x):,}" for x in rates)
            times = f"{r['ratio']:.2f} x [{r['least']:.2f}, {r['greatest']:.2f}]"
            limit = RATIO[agent]
            what = f"{a}: steps/s against rejax 0.1.3, 8 seeds, the same settings"
            row(what, f"{both}: {times}", f"{limit} x", r["ratio"] >= limit)
        if r := found.get("peak"):
            what = f"{a}: of what matrix products alone reach ({r['peak_gflops']:.0f} GFLOP/s), 8 seeds"
            row(what, f"{100 * r['fraction']:.0f} %", "45 %", r["fraction"] >= 0.45)
            row(f"{a}: GFLOP/s of a hidden layer alone, and of gradients", of_a_layer(r))
        if r := found.get("first"):
            measured = f"{r['cold']:.1f} s, with the compile cache {r['cached']:.1f} s"
            if "parts" in r:
                measured += "".join(f"; {name}: {parts_in_words(x)}" for name, x in r["parts"].items())
            row(f"{a}: from the command to the first update", measured, "7, 3.5", r["cold"] <= 7 and r["cached"] <= 3.5)
        if r := found.get("diagnostics"):
            apart = ", apart from the evaluation on fresh keys" if agent == "cem" else ""
            what = f"{a}: what all diagnostics cost, of an update's time{apart}"
            row(what, f"{100 * r['cost']:.1f} %", "5 %", r["cost"] <= 0.05)
        if r := found.get("layout"):
            x = r["whole"]
            blocks = f"{x['ratio']:.2f} x [{x['least']:.2f}, {x['greatest']:.2f}]"
            row(f"{a}: 64 seeds, a core's rows in blocks that its caches hold, against all at once", blocks)
            x, seconds = r["optimised"], (r["compile_seconds"], r["compile_seconds_optimised"])
            less = f"{seconds[0]:.1f} s against {seconds[1]:.1f} s, at {x['ratio']:.2f} x the speed"
            row(f"{a}: compiling with less optimisation, against all of it", less)
        if r := found.get("memory"):
            both = f"{r[-1]['peak_rss_mb']:,} MB ({r[0]['peak_rss_mb']:,} MB)"
            row(f"{a}: peak memory, 64 seeds of 5e5 steps (of 1e5 steps)", both)
        for name, x in found.get("exact", {}).items():
            times = f"{x['ratio']:.2f} x [{x['least']:.2f}, {x['greatest']:.2f}]"
            variable, value = next(iter(EXACT[name].items()))
            row(f"{a}: 512 seeds, the speed with `{variable}={value}`", times)
        if r := found.get("large"):
            both = f"{r['planned_mb']:,} MB planned, peak {peak_mb(r):,} MB; {r['steps_per_second']:,} steps/s"
            row(f"{a}: 8 seeds with rollouts of 64 x 1,024 observations of {LARGE['env_id']}", both)
        for env_id, r in found.get("rollout", {}).items():
            kept = f"{100 * r['kept_of_rollouts']:.0f} %, {100 * r['kept_of_environments']:.0f} %"
            what = f"{a}: {env_id}, 8 seeds; kept of the speed of its rollouts alone, and of as many bare environments"
            row(what, f"{r['steps_per_second'] / 1e6:.1f} million steps/s; {kept}")
        for what, r in found.get("bytes", {}).items():
            size = f"{r['bytes_per_transition']:,.0f} bytes, {r['bytes_per_seed'] / 1e6:.1f} MB"
            row(f"{a}: a stored transition, and a seed with its buffer of 1e4; {what}", size)
    if missing := [name for name in wanted(results) if name not in results]:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


RATIO = {"ppo": 2.6, "dqn": 3.0}
KINDS = ("rejax", "peak", "first", "diagnostics", "layout", "exact", "memory", "large", "rollout", "bytes")
ON_CPUS = {"seeds", *KINDS} - {"exact"}
# The layouts and the peak of products are a CPU's; what rejax takes is not there.
ON_ACCELERATORS = ("seeds", "diagnostics", "exact", "large")
MEASURES: dict[str, Callable[[str], Any]] = {
    "ppo/seeds": measure_seeds,
    "dqn/seeds": measure_seeds,
    "cem/seeds": measure_seeds,
    "ppo/rejax": measure_rejax,
    "dqn/rejax": measure_rejax,
    "ppo/peak": measure_peak,
    "ppo/first": measure_first,
    "dqn/first": measure_first,
    "cem/first": measure_first,
    "ppo/diagnostics": measure_diagnostics,
    "dqn/diagnostics": measure_diagnostics,
    "cem/diagnostics": measure_diagnostics,
    "ppo/layout": measure_layout,
    "dqn/layout": measure_layout,
    "cem/layout": measure_layout,
    "ppo/exact": measure_exact,
    "dqn/exact": measure_exact,
    "cem/exact": measure_exact,
    "ppo/memory": measure_memory,
    "ppo/large": measure_large,
    "dqn/bytes": measure_bytes,
    "cem/rollout": measure_rollout,
}


def wanted(results: dict[str, Any]) -> list[str]:
    """The names of what is measured where these were."""
    kinds = ON_ACCELERATORS if "platform" in results else ON_CPUS
    return [name for name in MEASURES if name.partition("/")[2] in kinds]


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](*sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(MEASURES)}")
    parser.add_argument(
        "--against", metavar="COMMIT", help="compare the agents with those of a commit, and nothing else"
    )
    options = parser.parse_args()
    if options.against:
        for agent in ("ppo", "dqn", "cem"):
            measure_against(agent, options.against)
        return
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"there is no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    kind, device = accelerator() or ("", "")
    path = HERE / "results" / ("speed.json" if not kind else f"speed-{kind}.json")
    results = json.loads(path.read_text()) if path.exists() else {}
    if kind:
        results["platform"] = kind
    for name in options.names or wanted(results):
        machine = (
            f"{device + ', ' if device else ''}{os.cpu_count()} cores, {platform.machine()}, "
            f"load {os.getloadavg()[0]:.1f} at the start, "
            f"jax {version('jax')}, rlref {version('rlref')}, {time.strftime('%Y-%m-%d')}"
        )
        results[name] = MEASURES[name](name.partition("/")[0])
        results["machine"] = results.get("machine", {}) | {name: machine}
        results = {k: results[k] for k in ("platform", "machine", *MEASURES) if k in results}
        path.write_text(json.dumps(results, indent=1) + "\n")
        page.put(path.with_suffix(".md"), "speed", report(results))
        figure(results, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
