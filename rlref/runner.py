"""Training an agent over seeds, settings, devices and hosts.

    run = rlref.train("ppo", ppo.Config(env_id="Acrobot-v1"), num_seeds=32)
    run = rlref.resume("runs/...")

The runner knows an agent through its contract alone. What it trains is a list of rows, one per setting and seed:
`vmap` over rows, sharded over all devices, in chunks of updates, with the host one chunk behind. Rows never talk to
each other, so nothing crosses devices; statistics over seeds are the host's.
"""

import contextlib
import dataclasses
import functools
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rlref import compiling, envs, evaluation, findings, hosts, jobs, memory, runs, verdicts
from rlref import sinks as metric_sinks
from rlref.agents import load_agent
from rlref.checkpoint import Checkpoints, DamagedError, place
from rlref.errors import UsageError
from rlref.extension import check_extension
from rlref.jobs import Job
from rlref.runs import Run
from rlref.sinks import Row, Sink, Sinks, in_a_line
from rlref.trained import Trained
from rlref.verdicts import Diagnosis

CHUNK_SECONDS = 0.5  # how long a chunk of updates should take: how often the host looks, and how long Ctrl-C waits
MAX_CHUNK = 256  # updates of one chunk at most
WRITE_SECONDS = 5.0  # metrics are written to the run's folder this often
CHECKPOINT_SECONDS = 60.0  # and checkpoints, unless the caller says after how many updates
MEMORY_SHARE = 0.8  # of the free memory that a group of rows may take
# A CPU core trains its rows in blocks, as more fall out of its caches: of at most so many rows, and so many bytes.
BLOCK_ROWS, BLOCK_BYTES = 8, 8e6


class Display(Protocol):
    """Where the runner says what it is doing; rlref.cli shows it on a terminal."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def compiling(self, what: str) -> contextlib.AbstractContextManager[Any]: ...

    def progress(
        self, done: int, total: int, metrics: dict[str, np.ndarray], verdict: Callable[[], Diagnosis]
    ) -> None: ...


class Silent:
    """No display; warnings are Python's."""

    def say(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)

    def compiling(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def progress(self, done: int, total: int, metrics: dict[str, np.ndarray], verdict: Callable[[], Diagnosis]) -> None:
        pass


class Plan(NamedTuple):
    """How rows are laid out. A group is what is trained at once: `rows` of them real, `padded` to fill the devices."""

    mesh: jax.sharding.Mesh
    rows: int
    padded: int


class Clock:
    """Where the host's time goes, in seconds: each `book` puts down what has gone by since the one before.

    So they sum to all of it. The device works on while the host does something else; what is long on the host's side
    alone shows under its own name, and makes the training wait only as far as it is longer than a chunk.
    """

    def __init__(self) -> None:
        self.seconds = {
            "compiling": 0.0,  # and tracing, and making the run's folder
            "training": 0.0,  # the first state, and waiting for chunks of updates
            "evaluation": 0.0,  # waiting longer, for an evaluation after a chunk
            "checkpoints": 0.0,  # reading and writing them, as far as the training stood still for it
            "logging": 0.0,  # metrics to the run's folder and to sinks, the display with its verdicts
        }
        self.at = time.monotonic()

    def book(self, what: str) -> None:
        now = time.monotonic()
        self.seconds[what] += now - self.at
        self.at = now


class Programs(NamedTuple):
    """The compiled programs over one group's rows."""

    init: Callable[..., Any]
    chunk: Callable[..., Any]
    evaluate: Callable[..., Any] | None
    names: list[str]
    """of the chunk's metrics"""
    eval_names: list[str]
    """of the evaluation's"""
    state: Any
    """the state's tree, of shapes `[padded rows, ...]`"""


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
    checkpoint_every: int | None = None,
    memory_gb: float | None = None,
    sinks: Sequence[str | Sink] | None = None,
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
      checkpoint_every: updates between checkpoints in the run's folder; None: about one a minute; 0: none while it
        trains. There is one when it ends, and one when it is stopped, in any case.
      memory_gb: how much memory training may take, in 1e9 bytes; without it, 80 % of what is free.
      sinks: where metrics go as they come, besides the run's folder: "tensorboard", "csv", "parquet", all of them in
        the folder, or objects of your own; see `rlref.sinks`. None: "tensorboard", if tensorboardX is installed.
      command: kept in the run's folder.
      display: where to show progress.

    Raises UsageError, in one line, before anything is trained or written, for whatever cannot work. Ctrl-C and SIGTERM
    end the training after the chunk under way; the Run has what was reached, and "interrupted" as its summary's status.
    Its summary's "seconds" say where the time went, as `Clock` has it, in this call: not before, in a run resumed.
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
    config = jobs.arrays_for_lists(config)
    check_numbers(num_seeds=num_seeds, seed=seed, eval_every=eval_every, eval_episodes=eval_episodes)
    check_numbers(checkpoint_every=checkpoint_every)
    num_seeds, seed, eval_every, eval_episodes = int(num_seeds), int(seed), int(eval_every), int(eval_episodes)
    if seed + num_seeds > 2**31:
        sums = f"seed + num_seeds is {seed + num_seeds}"
        raise UsageError(f"{sums}; seeds are numbers below 2**31, and jax would silently fold larger ones")
    path = None if run_dir is None else Path(run_dir)
    chosen: list[str | Sink] = []
    with hosts.together():
        if hosts.is_first():
            if path is not None and path.exists():
                raise UsageError(f"{path} exists already and is never overwritten; give another --run-dir")
            chosen = metric_sinks.checked(metric_sinks.default(path) if sinks is None else sinks, path)
    own_env = env is not None
    env, env_params = envs.resolved(config.env_id, env, env_params)
    envs.check_interface(env, env_params, config.env_id)
    seeds = list(range(seed, seed + num_seeds))
    job = Job(module, config, env, env_params, seeds, eval_every, eval_episodes, own_env)
    if eval_every > job.agent.num_updates:
        updates = job.agent.num_updates
        raise UsageError(f"eval_every is {eval_every}, more than the {updates} updates of this training")
    clock = Clock()
    plan = make_plan(job.num_rows, job_bytes(job, path is not None), memory_gb, display)

    folder = None
    with hosts.together():
        if path is not None and hosts.is_first():
            about = {
                **job.about,
                "command": list(command),
                "note": note,
                "num_settings": job.num_settings,
                "env_params_values": runs.in_json(jobs.plain_values(env_params)),
                "num_updates": job.agent.num_updates,
                "steps_per_update": job.agent.steps_per_update,
                "rows_per_group": plan.rows,
                "checkpoint_every": checkpoint_every,
                "sinks": metric_sinks.names(chosen),
            }
            folder = runs.Folder.create(path, job.source, job.code, about)
    return run_job(job, plan, path, folder, checkpoint_every, display, sinks=metric_sinks.made(chosen), clock=clock)


def resume(
    run_dir: str | Path,
    *,
    total_timesteps: int | None = None,
    agent: str | os.PathLike[str] | ModuleType | None = None,
    env: Any = None,
    env_params: Any = None,
    checkpoint_every: int | None = None,
    memory_gb: float | None = None,
    sinks: Sequence[str | Sink] = (),
    command: Sequence[str] = (),
    display: Display | None = None,
) -> Run:
    """Go on with a run from its newest checkpoint, as if it had never stopped, and return the Run.

    Damaged checkpoints are set aside with a warning, and an older one is taken, or the run begins again. Metrics that
    were written after the checkpoint are dropped: they come again.

    Args:
      run_dir: the run's folder; the agent's file and all settings come from there.
      total_timesteps: environment steps of one seed, more than the run has, to extend it.
      agent, env, env_params: for runs whose folder cannot name them, because they were given from Python.
      checkpoint_every: as in `train`; without it, as the run had it.
      memory_gb, display: as in `train`.
      sinks: more of them, and your own again; the built-in ones that the run has go on in any case.
      command: kept in the run's folder.

    Raises UsageError, with the folder as it was, if there is no run, if it is finished or being trained, if its
    settings are not those of its checkpoints, or if it cannot be extended because a schedule ends with it.
    """
    display = display or Silent()
    check_numbers(checkpoint_every=checkpoint_every)
    path = Path(run_dir)
    job = jobs.of_folder(path, agent, env, env_params)
    about = runs.read_about(path, strict=True)
    envs.check_interface(job.env, job.env_params, job.config.env_id)
    if total_timesteps is not None:
        job = jobs.lengthened(job, total_timesteps)
    if checkpoint_every is None:
        checkpoint_every = about["checkpoint_every"]
    clock = Clock()
    plan = make_plan(job.num_rows, job_bytes(job, True), memory_gb, display, about["rows_per_group"])
    folder, changed = None, []
    with contextlib.ExitStack() as undo:
        with hosts.together():
            if hosts.is_first():
                folder = undo.enter_context(contextlib.closing(runs.Folder(path)))
        seems_finished = runs.read_summary(path) is not None
        firsts = range(0, job.num_rows, plan.rows)
        newest = [newest_update(job, path, first, verify=seems_finished) for first in firsts]
        if seems_finished and min(newest) == job.agent.num_updates:
            raise UsageError(
                f"{path} is finished: it has all of its {job.agent.num_updates} updates; "
                "more --total-timesteps extend it"
            )
        if folder:
            with contextlib.suppress(UsageError):  # it is damaged, and written anew
                changed = runs.changes(runs.read_json(path / "environment.json"), runs.environment(job.source))
            if changed:
                display.warn(f"{path} goes on elsewhere, so not bit for bit as it would have: {'; '.join(changed)}")
        chosen: list[str | Sink] = []
        with hosts.together():
            if folder:
                had = about.get("sinks")
                chosen = metric_sinks.going_on(had, sinks, path, display.warn)
                about["sinks"] = list(dict.fromkeys([*(had or []), *metric_sinks.names(chosen)]))
                folder.reopen(
                    runs.in_json(about | job.about | {"num_updates": job.agent.num_updates}),
                    job.source,
                    list(command),
                )
        undo.pop_all()
    return run_job(job, plan, path, folder, checkpoint_every, display, sinks=metric_sinks.made(chosen), clock=clock)


def check_numbers(**options: Any) -> None:
    """Raise UsageError for options that are no whole numbers, or too small; and where jax computes in 64 bits."""
    for name, value in options.items():
        least = 1 if name in ("num_seeds", "eval_episodes") else 0
        if value is None and name == "checkpoint_every":
            continue
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise UsageError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise UsageError("jax_enable_x64 is on; the agents compute in float32 and int32, so turn it off")


def newest_update(job: Job, path: Path, first_row: int, verify: bool) -> int:
    """Updates done at the newest checkpoint of a group, with `verify` one that loads; 0 without one.

    Raises UsageError if it is another job's.
    """
    with contextlib.closing(Checkpoints(path, first_row)) as checkpoints:
        for update in checkpoints.updates():
            with contextlib.suppress(DamagedError):
                record = checkpoints.record(update)
                saved = jobs.check_same(job, record.about, path)
                if saved is not job:
                    check_extension(saved, job, checkpoints.load(record), path)
                elif verify:
                    checkpoints.load(record)
                return update
    return 0


def run_job(
    job: Job,
    plan: Plan,
    path: Path | None,
    folder: runs.Folder | None,
    checkpoint_every: int | None,
    display: Display,
    limit: int | None = None,
    sinks: Sequence[Sink] = (),
    clock: Clock | None = None,
) -> Run:
    """Train a job from where its folder is to the end, or for its first `limit` updates.

    `path` is None for a run in memory; in all processes but the first `folder` is None and `sinks` is empty. `clock`
    was started when the job was about to be traced.
    """
    num_updates = job.agent.num_updates if limit is None else min(limit, job.agent.num_updates)
    pieces: runs.Pieces = {}
    policies = []
    steps_before, stopped, complete = 0.0, 0, True
    with contextlib.ExitStack() as stack:
        if folder:
            stack.enter_context(contextlib.closing(folder))
        clock = clock or Clock()
        programs = compile_programs(job, plan, display)
        clock.book("compiling")
        stop = stack.enter_context(signals())
        opened = Sinks(sinks, path, display.warn)
        stack.callback(opened.close)  # whatever happens
        for first in range(0, job.num_rows, plan.rows):
            group = Group(programs, plan, job, first, clock)
            if job.num_rows > plan.rows:
                display.say(f"rows {first} to {first + group.real - 1} of {job.num_rows}")
            keeper = Keeper(job, group, path, folder, pieces, opened, display)
            start = keeper.restore()
            steps_before += group.env_steps.sum()
            for update, values in group.train(start, num_updates, checkpoint_every, stop):
                if values is None:
                    keeper.save(update)
                    continue
                keeper.keep(update, values)
                done = first * num_updates + group.real * (update + values["env_steps"].shape[1])
                verdict = functools.partial(verdict_so_far, job, pieces, first)
                display.progress(done, job.num_rows * num_updates, values, verdict)
                clock.book("logging")
            keeper.close()
            complete &= keeper.complete
            policies.append(group.policy_leaves())
            stopped = group.stopped
            if stopped:
                break
        clock.book("training")

        _, updates = runs.end_of(pieces)
        shape = (*job.shape, updates)
        joined = runs.join(pieces, shape)
        run = Run(job.name, job.settings, job.seeds, joined, {}, job.batched, job.agent.num_updates, path)
        run.trained = Trained(job, {name: np.concatenate([p[name] for p in policies]) for name in policies[0]})
        train_seconds = sum(clock.seconds.values()) - clock.seconds["compiling"]
        steps = float(np.nansum(runs.last(run.metrics["env_steps"])))
        run.summary = {
            "status": "interrupted" if stopped else "finished" if complete else "incomplete",
            # In the last chunk a signal is too late for this run, but not for what was to come after it.
            **({"stopped_by": signal.Signals(stop.signal or stopped).name} if stop.signal or stopped else {}),
            **runs.summarise(run),
            "env_steps": steps,
            "compile_seconds": round(clock.seconds["compiling"], 2),
            "train_seconds": round(train_seconds, 2),
            "seconds": {what: round(x, 2) for what, x in clock.seconds.items()},
            "steps_per_second": round((steps - steps_before) / train_seconds),
            "findings": [findings.to_json(f) for f in run.diagnose().findings],
        }
        if folder and complete:
            complete = False
            with keeper.unwritten("its summary"):
                folder.write_summary(run.summary)
                complete = True
            if not complete:
                run.summary["status"] = "incomplete"
    return run


def verdict_so_far(job: Job, pieces: runs.Pieces, first: int) -> Diagnosis:
    """What the health checks say of the group of rows from `first` on, after the metrics in `pieces`."""
    own = {(0, update): piece for (row, update), piece in pieces.items() if row == first}
    config = {name: x for name, x in job.settings.items() if name not in job.batched}
    rows, updates = runs.end_of(own)
    return verdicts.diagnose(
        runs.join(own, (rows, updates)),
        config,
        num_updates=job.agent.num_updates,
        seeds=job.row_seeds[first : first + rows].tolist(),
        exact=verdicts.full_precision(),
    )


def job_bytes(job: Job, saved: bool) -> int:
    """Memory that a row takes at its peak, with the copies of its state that are made outside an update.

    These are, on a CPU, what a checkpoint is written from, with `saved`; and a block of rows while it trains, which is
    half of a device's rows at most.
    """
    copied = job.row.copied_bytes
    return job.row.peak_bytes + copied * saved + copied // 2


def rows_at_once(job: Job, rows: int) -> int:
    """How many of its `rows` a device trains at once: a divisor that caches hold; all, if there is none worth it."""
    if not memory.on_cpu():
        return rows
    most = max(1, min(BLOCK_ROWS, int(BLOCK_BYTES // job.row.peak_bytes)))
    block = max(size for size in range(1, most + 1) if rows % size == 0)
    return block if 2 * block >= most else rows


def make_plan(
    num_rows: int, bytes_per_row: int, memory_gb: float | None, display: Display, rows: int | None = None
) -> Plan:
    """Choose groups of `rows` rows, or that fit the memory, and as many devices as fill up with the least padding."""
    devices, processes = jax.devices(), jax.process_count()
    if memory_gb is not None and not memory_gb > 0:
        raise UsageError(f"memory_gb is {memory_gb}; it must be above 0")
    if memory_gb == math.inf:
        raise UsageError("memory_gb is inf; it must be finite")
    budget = memory_gb * 1e9 if memory_gb is not None else MEMORY_SHARE * memory.free_bytes()
    # Of every process its own share; all must come to the same groups.
    fit = processes * int(hosts.gathered([min(int(budget // bytes_per_row), 2**31 - 1)]).min())
    if fit < (1 if rows is None else min(rows, num_rows)):
        what = "one seed takes" if rows is None else f"{rows} seeds, which this run trains at once, take"
        raise UsageError(
            f"{what} about {(rows or 1) * bytes_per_row / 1e6:,.0f} MB, more than the {budget / 1e6:,.0f} MB there "
            "are; a smaller rollout, replay buffer, population or network would take less"
        )
    if rows is None:
        rows = math.ceil(num_rows / math.ceil(num_rows / fit))
    groups = math.ceil(num_rows / rows)
    per_device = math.ceil(rows / len(devices))
    # Every process has to take part, with rows that only fill up if there are not enough.
    used = math.ceil(rows / per_device) if processes == 1 else len(devices)
    if groups > 1:
        display.say(
            f"{num_rows} seeds would take about {num_rows * bytes_per_row / 1e6:,.0f} MB, and {budget / 1e6:,.0f} MB "
            f"may be used: they train in {groups} groups of at most {rows}, one after the other"
        )
    mesh = jax.make_mesh((used,), ("seed",), axis_types=(AxisType.Auto,), devices=devices[:used])
    return Plan(mesh, rows, per_device * used)


def compile_programs(job: Job, plan: Plan, display: Display) -> Programs:
    """Compile what trains a group: init, a chunk of updates, and the evaluation if there is one."""
    config, row_config = job.config, job.row_config
    by_row, everywhere = NamedSharding(plan.mesh, P("seed")), NamedSharding(plan.mesh, P())
    config_axis, config_sharding = (None, everywhere) if row_config is None else (0, by_row)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((plan.padded,) if row_config is not None else (), jnp.float32), config
    )
    keys = jax.eval_shape(lambda: jax.vmap(jax.random.key)(jnp.arange(plan.padded)))
    chunk_size = min(MAX_CHUNK, job.agent.num_updates)

    def init(config: Any, keys: jax.Array) -> Any:
        return jax.vmap(lambda c, key: job.make(c).init(key), (config_axis, 0))(config, keys)

    update = jax.vmap(job.row.update, (config_axis, 0, None))
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((plan.padded, *x.shape), x.dtype), job.row.state)
    names = job.row.names
    rows = plan.padded // plan.mesh.size
    block = rows_at_once(job, rows)

    def chunk(config: Any, state: Any, start: jax.Array, count: jax.Array) -> tuple[Any, jax.Array]:
        def train_block(b: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            def part(tree: Any) -> Any:
                return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, b * block, block), tree)

            block_config = config if row_config is None else part(config)

            # A loop of `count` turns rather than a scan: one program serves chunks of any length.
            def body(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
                state, diagnostics = update(block_config, carry[0], start + i)
                return state, carry[1].at[:, i].set(jnp.stack([diagnostics[name] for name in names], axis=1))

            done = jax.lax.fori_loop(0, count, body, part(carry))
            return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, b * block, axis=0), carry, done)

        return jax.lax.fori_loop(0, rows // block, train_block, (state, jnp.zeros((rows, chunk_size, len(names)))))

    def evaluate(config: Any, state: Any, keys: jax.Array) -> dict[str, jax.Array]:
        def one(config: Any, state: Any, key: jax.Array) -> dict[str, jax.Array]:
            return evaluation.evaluate(job.make(config), state, key, job.env, job.env_params, job.eval_episodes)

        return jax.vmap(one, (config_axis, 0, 0))(config, state, keys)

    def lower(f: Callable[..., Any], shardings: tuple[Any, ...], arguments: tuple[Any, ...], **options: Any) -> Any:
        # Every device runs the program by itself, on its own rows. Else the loops of episodes, which end when the last
        # one has, would ask all devices at every step; and without check_vma=False gradients would be summed over them.
        specs = tuple(sharding.spec for sharding in shardings)
        f = jax.shard_map(f, mesh=plan.mesh, in_specs=specs, out_specs=P("seed"), check_vma=False)
        return jax.jit(f, in_shardings=shardings, out_shardings=by_row, **options).lower(*arguments)

    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    eval_names, pool, pending = [], ThreadPoolExecutor(), {}
    # XLA compiles on other cores while the next program is traced.
    with display.compiling("the training"):
        try:
            shardings = (config_sharding, by_row, everywhere, everywhere)
            lowered = lower(chunk, shardings, (shapes, state, scalar, scalar), donate_argnums=1)
            pending["chunk"] = pool.submit(lowered.compile, compiling.options(compiling.LOOP))
            lowered = lower(init, (config_sharding, by_row), (shapes, keys))
            pending["init"] = pool.submit(lowered.compile, compiling.options(compiling.ONCE))
            if job.eval_every:
                eval_names = sorted(jax.eval_shape(evaluate, shapes, state, keys))
                lowered = lower(evaluate, (config_sharding, by_row, by_row), (shapes, state, keys))
                pending["evaluate"] = pool.submit(lowered.compile, compiling.options(compiling.LOOP))
            compiled = {name: x.result() for name, x in pending.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C need not wait for XLA
    return Programs(compiled["init"], compiled["chunk"], compiled.get("evaluate"), names, eval_names, state)


class Stop:
    """Whether the training is to end after the chunk under way."""

    signal = 0
    """the number of the signal that said so"""


class Group:
    """Rows that train at once: those of `job` from `first` on. Where the time goes is booked in `clock`."""

    def __init__(self, programs: Programs, plan: Plan, job: Job, first: int, clock: Clock | None = None):
        self.programs, self.job, self.first, self.clock = programs, job, first, clock or Clock()
        self.by_row = NamedSharding(plan.mesh, P("seed"))
        self.padded, self.real = plan.padded, min(plan.rows, job.num_rows - first)
        # Rows that only fill up repeat the last one; they are dropped when metrics are read.
        rows = first + np.minimum(np.arange(plan.padded), self.real - 1)
        config = job.config if job.row_config is None else take(job.row_config, rows)
        self.config = jax.tree.map(
            lambda x: jax.device_put(np.float32(x), NamedSharding(plan.mesh, P("seed") if np.ndim(x) else P())), config
        )
        self.keys = jax.jit(jax.vmap(jax.random.key), out_shardings=self.by_row)(job.row_seeds[rows])
        self.state: Any = None
        self.env_steps = np.zeros(self.real)  # of each row so far
        self.stopped = 0  # the signal that stopped it

    @property
    def names(self) -> list[str]:
        """Of all metrics that `train` gives."""
        return [*self.programs.names, *self.programs.eval_names, "steps_per_second"]

    def train(
        self, done: int, until: int, checkpoint_every: int | None, stop: Stop
    ) -> Iterator[tuple[int, dict[str, np.ndarray] | None]]:
        """Train from update `done` to update `until`, one chunk ahead of the host.

        Yield each chunk's first update with its metrics `[rows, updates]`; and, where the state may be saved, the
        number of updates done with None: all their metrics have been given by then. The last is one of these.
        """
        eval_every, num_updates = self.job.eval_every, self.job.agent.num_updates
        multiples = [n for n in (eval_every, checkpoint_every) if n]
        finished = 0.0  # when the devices finished the last chunk
        count, pending, due, saved_at = 1, None, False, time.monotonic()
        while True:
            # One decision for all processes, or they would not run the same programs.
            votes = hosts.gathered([count, due, stop.signal])
            count, due = int(votes[0, 0]), bool(votes[:, 1].any())
            # One update at least, for there to be something; and none is missing if the last has been sent off.
            self.stopped = int(votes[:, 2].max()) if 0 < done < until else 0
            dispatched = None
            if done < until and not due and not self.stopped:
                size = min(count, until - done, *(n - done % n for n in multiples))
                self.state, buffer = self.programs.chunk(self.config, self.state, np.int32(done), np.int32(size))
                results = None
                if self.programs.evaluate and ((done + size) % eval_every == 0 or done + size == num_updates):
                    keys = jax.vmap(jax.random.fold_in, (0, None))(self.keys, done + size)
                    results = self.programs.evaluate(self.config, self.state, keys)
                dispatched = done, size, buffer, results, time.monotonic()
                done += size
                due = bool(checkpoint_every and done % checkpoint_every == 0)
            if pending is not None:
                update, size, buffer, results, since = pending
                values = self._read(buffer, size, results)
                now = time.monotonic()
                # The devices began this chunk when it was sent off, or when the one before was finished.
                seconds = now - max(since, finished)
                finished = now
                before, self.env_steps = self.env_steps, values["env_steps"][:, -1].astype(np.float64)
                values["steps_per_second"] = np.full_like(
                    values["env_steps"], (self.env_steps.sum() - before.sum()) / seconds
                )
                count = max(1, min(MAX_CHUNK, int(size * CHUNK_SECONDS / seconds), 8 * size))
                due = due or (checkpoint_every is None and now - saved_at > CHECKPOINT_SECONDS)
                yield update, values
            if dispatched is None:
                yield done, None
                if done == until or self.stopped:
                    return
                due, saved_at = False, time.monotonic()
            pending = dispatched

    def _read(self, buffer: jax.Array, count: int, evaluation: Any) -> dict[str, np.ndarray]:
        """Wait for a chunk's metrics, without the rows that only fill up; those of an evaluation are its last's."""
        # A row per line in memory, so that slicing keeps whole seeds together.
        array = hosts.to_host(buffer)[: self.real, :count]
        self.clock.book("training")
        evaluated = {name: hosts.to_host(x)[: self.real] for name, x in (evaluation or {}).items()}
        self.clock.book("evaluation")
        values = {name: np.ascontiguousarray(array[:, :, i]) for i, name in enumerate(self.programs.names)}
        for name in self.programs.eval_names:
            values[name] = np.full((self.real, count), np.nan, np.float32)
            if name in evaluated:
                values[name][:, -1] = evaluated[name]
        return values

    def policy_leaves(self) -> dict[str, np.ndarray]:
        """What acting takes of the state, `[rows, ...]` on the host."""
        leaves = evaluation.named_leaves(self.state)
        return {name: hosts.to_host(leaves[name])[: self.real] for name in self.job.policy_leaves}


def rows_of(job: Job) -> list[Row]:
    """What a job's rows are, for sinks."""
    plain, seeds, labels = job.settings, job.row_seeds.tolist(), job.labels
    settings = [None if job.num_settings is None else i // len(job.seeds) for i in range(job.num_rows)]
    return [
        Row(i, label, seed, setting, plain | {name: plain[name][setting] for name in job.batched}, tuple(job.batched))
        for i, (label, seed, setting) in enumerate(zip(labels, seeds, settings, strict=True))
    ]


class Keeper:
    """Writes a group's metrics and checkpoints to the run's folder, and reads them back; for a run in memory, nothing.

    What cannot be written, on a full disk for one, is warned of and tried again; the training goes on. Sinks get the
    metrics as well.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        path: Path | None,
        folder: runs.Folder | None,
        pieces: runs.Pieces,
        sinks: Sinks,
        display: Display,
    ):
        self.job, self.group, self.path, self.folder = job, group, path, folder
        self.pieces, self.sinks, self.display = pieces, sinks, display
        self.clock = group.clock
        self.checkpoints = None if path is None else Checkpoints(path, group.first)
        self.saved = 0  # updates done at the newest checkpoint
        self.complete = True  # whether the newest checkpoint and all metrics until then are on disk

    def restore(self) -> int:
        """Bring the group to its newest checkpoint, or to its start; returns the updates done."""
        group, update = self.group, 0
        kept: runs.Pieces = {}
        newest = self._newest()
        if newest is None:
            group.state = group.programs.init(group.config, group.keys)
            self.clock.book("training")
        else:
            update, kept, arrays = newest
            group.state = place(arrays, group.programs.state, group.padded, group.by_row)
            last = kept[max(kept)]
            if self.job.eval_every and update % self.job.eval_every and update < self.job.agent.num_updates:
                # An evaluation here was that of the end, before the run was extended.
                last |= {name: _without_last(x) for name, x in last.items() if name.startswith("eval_")}
            group.env_steps = last["env_steps"][:, -1].astype(np.float64)
            self.display.say(f"going on after update {update}")
        self.pieces |= kept
        self.saved = update
        with hosts.together():
            if self.folder:
                dropped = self.folder.cut(group.first, kept)
                if dropped and not update:
                    self.display.warn("there is no checkpoint to go on from: the training begins again")
        self.clock.book("checkpoints")
        self.sinks.open(rows_of(self.job)[group.first :][: group.real], self._history(kept, update))
        self.clock.book("logging")
        return update

    def _history(self, kept: runs.Pieces, update: int) -> dict[str, np.ndarray]:
        """All metrics of the first `update` updates, `[rows, update]`: every name also where there are none yet."""
        shape = self.group.real, update
        joined = runs.join({(0, start): piece for (_, start), piece in kept.items()}, shape)
        return {name: joined.get(name, np.full(shape, np.nan, np.float32)) for name in self.group.names}

    def _newest(self) -> tuple[int, runs.Pieces, dict[str, np.ndarray]] | None:
        """The newest checkpoint that can be trusted: its update, all metrics until then, its leaves on the host."""
        if self.checkpoints is None or self.path is None:
            return None
        for update in self.checkpoints.updates():
            try:
                record = self.checkpoints.record(update)
                if record.rows != self.group.real:
                    raise DamagedError(f"it has {record.rows} rows, where the run has {self.group.real}")
                pieces = runs.pieces_until(self.path, self.group.first, update)
                return update, pieces, self.checkpoints.load(record)
            except (DamagedError, UsageError) as error:
                self.checkpoints.set_aside(update, str(error), self.display.warn)
        return None

    def keep(self, update: int, values: dict[str, np.ndarray]) -> None:
        """Keep a chunk's metrics, and write them now and then."""
        self.pieces[self.group.first, update] = values
        self.sinks.write(update, values)
        if self.folder and time.monotonic() - self.folder.written_at > WRITE_SECONDS:
            with self.unwritten("metrics"):
                self.folder.write_metrics(self.pieces)

    def save(self, update: int) -> None:
        """Write all metrics, then begin to write the state: a checkpoint never comes before its metrics."""
        if self.checkpoints is None:
            return
        self.sinks.flush()
        self.clock.book("logging")
        self.complete = False
        before, self.saved = self.saved, 0  # where it fails, the same update is saved again
        with self.unwritten("the checkpoint before"):
            self.checkpoints.wait()
            self.saved = before
        self.clock.book("checkpoints")
        with self.unwritten(f"the checkpoint of update {update}"):
            with hosts.together():
                if self.folder:
                    self.folder.write_metrics(self.pieces)
            self.clock.book("logging")
            if update != self.saved:
                self.checkpoints.save(self.job.about, self.group.real, update, self.group.state)
                self.saved = update
            self.complete = True
        self.clock.book("checkpoints")

    def close(self) -> None:
        self.sinks.close()
        self.clock.book("logging")
        if self.checkpoints:
            complete, self.complete = self.complete, False
            with self.unwritten("the last checkpoint"):
                self.checkpoints.close()
                self.complete = complete
            self.clock.book("checkpoints")

    @contextlib.contextmanager
    def unwritten(self, what: str) -> Iterator[None]:
        """Turn a failure to write `what` into a warning."""
        try:
            yield
        except Exception as error:  # the file system's errors come through Orbax in many kinds
            self.display.warn(f"{self.path}: {what} could not be written: {in_a_line(error)}")


def _without_last(x: np.ndarray) -> np.ndarray:
    """Metrics `[rows, updates]`, NaN at the last update."""
    return np.concatenate([x[:, :-1], np.full_like(x[:, -1:], np.nan)], axis=1)


def take(tree: Any, index: Any) -> Any:
    """`x[index]` of every leaf."""
    return jax.tree.map(lambda x: x[index], tree)


@contextlib.contextmanager
def signals() -> Iterator[Stop]:
    """What Ctrl-C or SIGTERM sets; a second one interrupts at once. Outside the main thread, never set."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handler(signum: int, frame: Any) -> None:
        if stop.signal:
            raise KeyboardInterrupt
        stop.signal = signum
        print("\nstopping after this chunk; Ctrl-C again to stop at once", file=sys.stderr)

    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
