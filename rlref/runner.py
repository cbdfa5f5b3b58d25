"""Training an agent over seeds, settings and devices.

    run = rlref.train("ppo", ppo.Config(env_id="Acrobot-v1"), num_seeds=32)

The runner knows an agent through its contract alone. What it trains is a list of rows, one per setting and seed:
`vmap` over rows, sharded over all devices, in chunks of updates, with the host one chunk behind. Rows never talk to
each other, so nothing crosses devices; statistics over seeds are the host's.
"""

import collections
import contextlib
import dataclasses
import functools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rlref import envs, runs
from rlref.agents import load_agent
from rlref.errors import UsageError
from rlref.runs import Run

CHUNK_SECONDS = 0.5  # how long a chunk of updates should take: how often the host looks, and how long Ctrl-C waits
MAX_CHUNK = 256  # updates of one chunk at most
WRITE_SECONDS = 5.0  # metrics are written to the run's folder this often
EVAL_LIMIT = 10_000  # steps of an evaluation's episode, where the environment names no limit of its own
MEMORY_SHARE = 0.8  # of the free memory that a group of rows may take
IN_PLACE = {"dynamic_update_slice", "scatter", "scan", "while", "cond", "jit", "pjit"}  # operations that write in place


class Display(Protocol):
    """Where the runner says what it is doing; rlref.cli shows it on a terminal."""

    def say(self, text: str) -> None: ...

    def compiling(self, what: str) -> contextlib.AbstractContextManager[Any]: ...

    def progress(self, done: int, total: int, metrics: dict[str, np.ndarray]) -> None: ...


class Silent:
    """No display."""

    def say(self, text: str) -> None:
        pass

    def compiling(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def progress(self, done: int, total: int, metrics: dict[str, np.ndarray]) -> None:
        pass


class Plan(NamedTuple):
    """How rows are laid out. A group is what is trained at once: `rows` of them real, `padded` to fill the devices."""

    mesh: jax.sharding.Mesh
    rows: int
    padded: int


class Programs(NamedTuple):
    """The compiled programs over one group's rows."""

    init: Callable[..., Any]
    chunk: Callable[..., Any]
    evaluate: Callable[..., Any] | None
    names: list[str]


def train(
    agent: str | os.PathLike[str] | ModuleType = "ppo",
    config: Any = None,
    *,
    num_seeds: int = 8,
    seed: int = 0,
    env: Any = None,
    env_params: Any = None,
    run_dir: str | Path | None = None,
    note: str = "",
    eval_every: int = 0,
    eval_episodes: int = 10,
    memory_gb: float | None = None,
    command: Sequence[str] = (),
    display: Display | None = None,
) -> Run:
    """Train `num_seeds` seeds of an agent and return the Run.

    Args:
      agent: a name ("ppo"), the path of a file that keeps the agent contract, or such a module.
      config: the agent's Config; the defaults without one. Float fields given as arrays `[K]`, all of one length, are
        K settings: every setting trains with every seed, in one program.
      num_seeds: how many; row i has the key `jax.random.key(seed + i)`, whatever the number of seeds.
      seed: the first seed's id.
      env: an environment of gymnax >= 1.0; without one, what `config.env_id` names.
      env_params: its parameters; its defaults without.
      run_dir: the folder to write the run to, which must not exist; without one the run stays in memory.
      note: the question that this run is to answer; kept in its folder.
      eval_every: updates between evaluations of `eval_episodes` episodes per seed, greedy and (but for DQN) sampled,
        and one more after the last update; 0 for none.
      memory_gb: how much memory training may take, in 1e9 bytes; without it, 80 % of what is free.
      command: kept in the run's folder.
      display: where to show progress.

    Raises UsageError, in one line, before anything is trained or written, for whatever cannot work. Ctrl-C ends the
    training after the chunk under way; the Run has what was reached, and "interrupted" as its summary's status.
    """
    display = display or Silent()
    module = load_agent(agent)
    config = module.Config() if config is None else config
    # By its fields, not its class: a file's Config is another class each time the file is loaded.
    lacking = [
        f.name for f in dataclasses.fields(module.Config) if isinstance(config, type) or not hasattr(config, f.name)
    ]
    if lacking:
        what = config if isinstance(config, type) else type(config)
        raise UsageError(f"config must be a {module.__name__}.Config, not {what}: it lacks {lacking[0]}")
    config = arrays_for_lists(config)
    at_least = {"num_seeds": (num_seeds, 1), "seed": (seed, 0), "eval_every": (eval_every, 0)}
    for name, (value, least) in (at_least | {"eval_episodes": (eval_episodes, 1)}).items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise UsageError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    num_seeds, seed, eval_every, eval_episodes = int(num_seeds), int(seed), int(eval_every), int(eval_episodes)
    if seed + num_seeds > 2**31:
        sums = f"seed + num_seeds is {seed + num_seeds}"
        raise UsageError(f"{sums}; seeds are numbers below 2**31, and jax would silently fold larger ones")
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise UsageError("jax_enable_x64 is on; the agents compute in float32 and int32, so turn it off")
    if run_dir is not None and Path(run_dir).exists():
        raise UsageError(f"{run_dir} exists already and is never overwritten; give another --run-dir")
    if env is None:
        env, default_params = envs.make_env(config.env_id)
    else:
        default_params = envs.checked(env, "env").default_params
    env_params = default_params if env_params is None else env_params
    envs.check_interface(env, env_params, config.env_id)
    batched = batched_settings(config)
    num_settings = int(next(iter(batched.values()))[0]) if batched else None
    try:
        built = module.make(config, env, env_params)
    except ValueError as error:
        raise UsageError(str(error)) from error

    seeds = list(range(seed, seed + num_seeds))
    num_rows = num_seeds * (num_settings or 1)
    num_updates = built.num_updates
    if eval_every > num_updates:
        raise UsageError(f"eval_every is {eval_every}, more than the {num_updates} updates of this training")
    row_config = None if num_settings is None else rows_of(config, num_settings, num_seeds)
    row_seeds = np.tile(seeds, num_settings or 1)
    plan = make_plan(num_rows, row_bytes(module, config, env, env_params, num_settings), memory_gb, display)

    folder = None
    source = Path(module.__file__) if module.__file__ else None
    settings = {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    name = module.__name__.rpartition(".")[2]
    if run_dir is not None:
        about = {
            "agent": name,
            "command": list(command),
            "note": note,
            "config": settings,
            "seeds": seeds,
            "num_settings": num_settings,
            "batched": list(batched),
            "env_params": repr(env_params),
            "num_updates": num_updates,
            "steps_per_update": built.steps_per_update,
            "eval_every": eval_every,
            "eval_episodes": eval_episodes,
        }
        folder = runs.Folder(Path(run_dir), source, about)
    labels = [f"seed-{s}" for s in row_seeds]
    if num_settings is not None:
        labels = [f"setting-{i // num_seeds}-{label}" for i, label in enumerate(labels)]
    board = runs.TensorBoard(folder.path, labels) if folder else None

    started = time.monotonic()
    programs = compile_programs(
        module, config, row_config, env, env_params, plan, num_updates, eval_every, eval_episodes, display
    )
    compiled = time.monotonic()
    pieces: runs.Pieces = {}
    finals = []
    interrupted = False
    with ctrl_c() as stop:
        for first in range(0, num_rows, plan.rows):
            if num_rows > plan.rows:
                display.say(f"rows {first} to {min(first + plan.rows, num_rows) - 1} of {num_rows}")
            # Rows that only fill up repeat the last one; they are dropped when metrics are read.
            rows = np.minimum(np.arange(first, first + plan.padded), min(first + plan.rows, num_rows) - 1)
            real = min(plan.rows, num_rows - first)
            group_config = config if row_config is None else take(row_config, rows)
            group = Group(programs, plan, group_config, row_seeds[rows], real)
            for update, values in group.train(num_updates, eval_every, stop):
                pieces[first, update] = values
                if board:
                    board.write(first, values)
                done = first * num_updates + real * (update + values["env_steps"].shape[1])
                display.progress(done, num_rows * num_updates, values)
                if folder and time.monotonic() - folder.written_at > WRITE_SECONDS:
                    folder.write_metrics(pieces)
            finals.append(group.state)
            if stop.is_set():
                interrupted = True
                break
    if folder:
        folder.write_metrics(pieces)
    if board:
        board.close()
    trained = time.monotonic()

    _, updates = runs.end_of(pieces)
    shape = (num_seeds, updates) if num_settings is None else (num_settings, num_seeds, updates)
    run = Run(name, settings, seeds, runs.join(pieces, shape), {}, list(batched), folder.path if folder else None)
    run.act = make_act(module, config, row_config, env, env_params, plan, finals)
    steps = float(np.nansum(runs.last(run.metrics["env_steps"])))
    run.summary = {
        "status": "interrupted" if interrupted else "finished",
        **runs.summarise(run),
        "env_steps": steps,
        "compile_seconds": round(compiled - started, 2),
        "train_seconds": round(trained - compiled, 2),
        "steps_per_second": round(steps / (trained - compiled)),
    }
    if folder:
        folder.write_summary(run.summary)
    return run


def leaves(config: Any) -> dict[str, Any]:
    """The settings of a flax dataclass that are traced, and may be batched."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.metadata.get("pytree_node", True)}


def arrays_for_lists(config: Any) -> Any:
    """`config` with settings given as lists, to be batched, as arrays: a list would be a branch of the pytree."""
    lists = {name: np.asarray(x) for name, x in leaves(config).items() if isinstance(x, list | tuple)}
    return dataclasses.replace(config, **lists)


def batched_settings(config: Any) -> dict[str, tuple[int, ...]]:
    """The names of batched settings with their shapes `[K]`. Raises UsageError unless these are one length."""
    shapes = {name: np.shape(x) for name, x in leaves(config).items() if x is not None and np.ndim(x) > 0}
    first = next(iter(shapes.values()), (1,))
    if len(set(shapes.values())) > 1 or len(first) != 1 or 0 in first:
        found = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise UsageError(f"batched settings must be lists of one length; they have the shapes {found}")
    return shapes


def take(tree: Any, index: Any) -> Any:
    """`x[index]` of every leaf."""
    return jax.tree.map(lambda x: x[index], tree)


def rows_of(config: Any, num_settings: int, num_seeds: int) -> Any:
    """A Config whose leaves hold a value per row: settings x seeds."""
    return jax.tree.map(lambda x: np.repeat(np.broadcast_to(np.float32(x), num_settings), num_seeds), config)


def _plain(x: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(x, tuple | list):
        return [_plain(y) for y in x]
    if isinstance(x, np.integer | np.floating):
        return x.item()
    return x if x is None or isinstance(x, bool | int | float | str) else np.asarray(x, np.float64).tolist()


def row_bytes(module: ModuleType, config: Any, env: Any, env_params: Any, num_settings: int | None) -> int:
    """Memory that one row takes at its peak: its state, and the largest moment of an update, by the traced program."""
    one = config if num_settings is None else jax.tree.map(lambda x: x if np.ndim(x) == 0 else x[0], config)
    agent = module.make(one, env, env_params)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    return peak_bytes(jax.make_jaxpr(agent.update)(state, jnp.int32(0)).jaxpr)


def peak_bytes(jaxpr: Any) -> int:
    """The most bytes of values alive at once, if each is freed after its last use and nothing is fused.

    What is written in place takes the place of an operand of its shape that is not used any more: so a replay buffer
    counts once.
    """

    def size(var: Any) -> int:
        # A PRNG key's dtype knows the bytes of a key; every other dtype those of an element.
        return math.prod(var.aval.shape) * var.aval.dtype.itemsize if hasattr(var.aval, "shape") else 0

    literal = jax_core.Literal
    last_use = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, literal)}
    last_use |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, literal)}
    alive = sum(size(v) for v in {*jaxpr.invars, *jaxpr.constvars})
    peak = alive
    for i, eqn in enumerate(jaxpr.eqns):
        inner = 0
        for sub in jax_core.jaxprs_in_params(eqn.params):
            inner = max(inner, peak_bytes(sub) - sum(size(v) for v in {*sub.invars, *sub.constvars}))
        done = {v for v in eqn.invars if not isinstance(v, literal) and last_use[v] == i}
        free = collections.Counter(str(v.aval) for v in done if eqn.primitive.name in IN_PLACE)
        reused = free & collections.Counter(str(v.aval) for v in eqn.outvars)
        taken_over = sum(count * next(size(v) for v in done if str(v.aval) == aval) for aval, count in reused.items())
        alive += sum(size(v) for v in eqn.outvars) - taken_over
        peak = max(peak, alive + inner)
        alive -= sum(size(v) for v in done) - taken_over
        alive -= sum(size(v) for v in eqn.outvars if last_use.get(v, i) == i)
    return peak


def free_bytes(devices: Sequence[jax.Device]) -> int:
    """Free memory, of all `devices` together."""
    if devices[0].platform == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    stats = [device.memory_stats() or {} for device in devices]
    return sum(s.get("bytes_limit", 2**33) - s.get("bytes_in_use", 0) for s in stats)


def make_plan(num_rows: int, bytes_per_row: int, memory_gb: float | None, display: Display) -> Plan:
    """Choose groups that fit the memory, and as many devices as divide a group's rows with the least filling up."""
    devices = jax.devices()
    if memory_gb is not None and not memory_gb > 0:
        raise UsageError(f"memory_gb is {memory_gb}; it must be above 0")
    budget = memory_gb * 1e9 if memory_gb is not None else MEMORY_SHARE * free_bytes(devices)
    fit = int(budget // bytes_per_row)
    if fit < 1:
        raise UsageError(
            f"one seed takes about {bytes_per_row / 1e6:,.0f} MB, more than the {budget / 1e6:,.0f} MB there are; "
            "a smaller rollout, replay buffer, population or network would take less"
        )
    groups = math.ceil(num_rows / fit)
    rows = math.ceil(num_rows / groups)
    per_device = math.ceil(rows / len(devices))
    used = math.ceil(rows / per_device)
    if groups > 1:
        display.say(
            f"{num_rows} seeds would take about {num_rows * bytes_per_row / 1e6:,.0f} MB, and {budget / 1e6:,.0f} MB "
            f"may be used: they train in {groups} groups of at most {rows}, one after the other"
        )
    mesh = jax.make_mesh((used,), ("seed",), axis_types=(AxisType.Auto,), devices=devices[:used])
    return Plan(mesh, rows, per_device * used)


def compile_programs(
    module: ModuleType,
    config: Any,
    row_config: Any,
    env: Any,
    env_params: Any,
    plan: Plan,
    num_updates: int,
    eval_every: int,
    eval_episodes: int,
    display: Display,
) -> Programs:
    """Compile what trains a group: init, a chunk of updates, and the evaluation if there is one."""
    by_row, everywhere = NamedSharding(plan.mesh, P("seed")), NamedSharding(plan.mesh, P())
    config_axis, config_sharding = (None, everywhere) if row_config is None else (0, by_row)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((plan.padded,) if row_config is not None else (), jnp.float32), config
    )
    keys = jax.eval_shape(lambda: jax.vmap(jax.random.key)(jnp.arange(plan.padded)))
    chunk_size = min(MAX_CHUNK, num_updates)

    def init(config: Any, keys: jax.Array) -> Any:
        return jax.vmap(lambda c, key: module.make(c, env, env_params).init(key), (config_axis, 0))(config, keys)

    def update(config: Any, state: Any, step: jax.Array) -> Any:
        return jax.vmap(lambda c, s: module.make(c, env, env_params).update(s, step), (config_axis, 0))(config, state)

    state = jax.eval_shape(init, shapes, keys)
    names = sorted(jax.eval_shape(update, shapes, state, jnp.int32(0))[1])

    def chunk(config: Any, state: Any, start: jax.Array, count: jax.Array) -> tuple[Any, jax.Array]:
        # A loop of `count` turns rather than a scan: one program serves chunks of any length.
        def body(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, diagnostics = update(config, carry[0], start + i)
            return state, carry[1].at[:, i].set(jnp.stack([diagnostics[name] for name in names], axis=1))

        rows = plan.padded // plan.mesh.size
        return jax.lax.fori_loop(0, count, body, (state, jnp.zeros((rows, chunk_size, len(names)))))

    def evaluate(config: Any, state: Any, keys: jax.Array) -> dict[str, jax.Array]:
        def one(config: Any, state: Any, key: jax.Array) -> dict[str, jax.Array]:
            return evaluate_one(module.make(config, env, env_params), state, key, env, env_params, eval_episodes)

        return jax.vmap(one, (config_axis, 0, 0))(config, state, keys)

    def jit(f: Callable[..., Any], shardings: tuple[Any, ...], arguments: tuple[Any, ...], **options: Any) -> Any:
        # Every device runs the program by itself, on its own rows. Else the loops of episodes, which end when the last
        # one has, would ask all devices at every step; and without check_vma=False gradients would be summed over them.
        specs = tuple(sharding.spec for sharding in shardings)
        f = jax.shard_map(f, mesh=plan.mesh, in_specs=specs, out_specs=P("seed"), check_vma=False)
        return jax.jit(f, in_shardings=shardings, out_shardings=by_row, **options).lower(*arguments).compile()

    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    with display.compiling("the initialisation"):
        compiled_init = jit(init, (config_sharding, by_row), (shapes, keys))
    with display.compiling("the training"):
        shardings = (config_sharding, by_row, everywhere, everywhere)
        compiled_chunk = jit(chunk, shardings, (shapes, state, scalar, scalar), donate_argnums=1)
    compiled_evaluate = None
    if eval_every:
        with display.compiling("the evaluation"):
            compiled_evaluate = jit(evaluate, (config_sharding, by_row, by_row), (shapes, state, keys))
    return Programs(compiled_init, compiled_chunk, compiled_evaluate, names)


def evaluate_one(
    agent: Any, state: Any, key: jax.Array, env: Any, env_params: Any, episodes: int
) -> dict[str, jax.Array]:
    """Mean return and length of `episodes` whole episodes, through the contract's `policy`: greedy, and sampled too.

    A policy that follows from action values is greedy itself: there is nothing to sample.
    """
    limit = getattr(env_params, "max_steps_in_episode", None)
    limit = EVAL_LIMIT if limit is None else limit
    space = env.action_space(env_params)

    def one(key: jax.Array, greedy: bool) -> tuple[jax.Array, jax.Array]:
        key, key_reset = jax.random.split(key)
        obs, env_state = env.reset(key_reset, env_params)

        def step(carry: Any) -> Any:
            t, _, total, obs, env_state = carry
            key_act, key_env = jax.random.split(jax.random.fold_in(key, t))
            action = choose(agent.policy(state, obs), space, None if greedy else key_act)
            obs, env_state, reward, terminated, truncated, _ = env.step(key_env, env_state, action, env_params)
            return t + 1, ~(terminated | truncated), total + reward, obs, env_state

        start = (jnp.int32(0), jnp.bool(True), jnp.float32(0), obs, env_state)
        t, _, total, _, _ = jax.lax.while_loop(lambda carry: carry[1] & (carry[0] < limit), step, start)
        return total, t.astype(jnp.float32)

    result: dict[str, jax.Array] = {}
    obs, _ = env.reset(key, env_params)
    of_action_values = agent.value is not None and agent.value(state, obs).ndim
    for how in ("greedy",) if of_action_values else ("greedy", "sampled"):
        # The same keys for both: they meet the same starts.
        total, length = jax.vmap(functools.partial(one, greedy=how == "greedy"))(jax.random.split(key, episodes))
        result |= {f"eval_return_{how}": total.mean(), f"eval_length_{how}": length.mean()}
    return result


def choose(policy: Any, space: Any, key: jax.Array | None) -> jax.Array:
    """An action from what the contract's `policy` gives: the likeliest without a key, a draw with one."""
    if isinstance(policy, tuple):
        mean, std = policy
        action = mean if key is None else mean + std * jax.random.normal(key, mean.shape)
        return jnp.clip(action.reshape(space.shape), space.low, space.high).astype(space.dtype)
    return jnp.argmax(policy) if key is None else jax.random.categorical(key, jnp.log(policy))


class Group:
    """Rows that train at once."""

    def __init__(self, programs: Programs, plan: Plan, config: Any, seeds: np.ndarray, real: int):
        by_row = NamedSharding(plan.mesh, P("seed"))
        self.programs, self.real = programs, real
        self.config = jax.tree.map(lambda x: np.asarray(x, np.float32), config)
        self.keys = jax.device_put(jax.vmap(jax.random.key)(jnp.asarray(seeds)), by_row)
        self.state = programs.init(self.config, self.keys)
        self.finished = 0.0  # when the devices finished the last chunk

    def train(
        self, num_updates: int, eval_every: int, stop: threading.Event
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield the metrics `[rows, updates]` of each chunk with its first update, one chunk behind the devices."""
        done, count, pending, steps = 0, 1, None, 0.0
        while True:
            dispatched = None
            if done < num_updates and not stop.is_set():
                count = min(count, num_updates - done, *([eval_every - done % eval_every] if eval_every else []))
                self.state, buffer = self.programs.chunk(self.config, self.state, np.int32(done), np.int32(count))
                evaluation = None
                at_end = done + count == num_updates
                if self.programs.evaluate and ((done + count) % eval_every == 0 or at_end):
                    keys = jax.vmap(jax.random.fold_in, (0, None))(self.keys, done + count)
                    evaluation = self.programs.evaluate(self.config, self.state, keys)
                dispatched = done, count, buffer, evaluation, time.monotonic()
                done += count
            if pending is not None:
                update, count_read, buffer, evaluation, since = pending
                values = self._read(buffer, count_read, evaluation)
                now = time.monotonic()
                # The devices began this chunk when it was sent off, or when the one before was finished.
                seconds = now - max(since, self.finished)
                self.finished = now
                before, steps = steps, values["env_steps"][:, -1].sum(dtype=np.float64)
                values["steps_per_second"] = np.full_like(values["env_steps"], (steps - before) / seconds)
                count = max(1, min(MAX_CHUNK, int(count_read * CHUNK_SECONDS / seconds), 8 * count_read))
                yield update, values
            if dispatched is None:
                return
            pending = dispatched

    def _read(self, buffer: jax.Array, count: int, evaluation: Any) -> dict[str, np.ndarray]:
        """Wait for a chunk's metrics, without the rows that only fill up."""
        # A row per line in memory, so that slicing keeps whole seeds together.
        array = np.asarray(buffer)[: self.real, :count]
        values = {name: np.ascontiguousarray(array[:, :, i]) for i, name in enumerate(self.programs.names)}
        for name, x in (evaluation or {}).items():
            values[name] = np.full((self.real, count), np.nan, np.float32)
            values[name][:, -1] = np.asarray(x)[: self.real]
        return values


def make_act(
    module: ModuleType, config: Any, row_config: Any, env: Any, env_params: Any, plan: Plan, finals: list[Any]
) -> Callable[..., Any]:
    """(row, observation, key or None) -> action, of the trained rows."""
    space = env.action_space(env_params)

    @jax.jit
    def act(config: Any, state: Any, obs: Any, key: Any) -> Any:
        return choose(module.make(config, env, env_params).policy(state, obs), space, key)

    def of_row(row: int, obs: Any, key: Any = None) -> Any:
        group, index = divmod(row, plan.rows)
        if group >= len(finals):
            raise UsageError("the run was interrupted before this seed began")
        state = take(finals[group], index)
        one = config if row_config is None else take(row_config, row)
        return act(one, state, jnp.asarray(obs), key)

    return of_row


@contextlib.contextmanager
def ctrl_c() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts at once. Outside the main thread, never set."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = signal.getsignal(signal.SIGINT)

    def handler(signum: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("\nstopping after this chunk; Ctrl-C again to stop at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handler)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
