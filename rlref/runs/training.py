"""Training an agent over seeds, settings, devices and hosts.

    run = rlref.train("ppo", ppo.Config(env_id="Acrobot-v1"), num_seeds=32)
    run = rlref.resume("runs/...")

An agent is known through its contract alone (rlref/contract.py). What is trained is a list of rows, one per setting and
seed: `vmap` over rows, sharded over all devices, in chunks of updates, with the host one chunk behind. Rows never talk
to each other, so nothing crosses devices; statistics over seeds are the host's.
"""

import contextlib
import dataclasses
import functools
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from rlref import stats
from rlref.contract import load_agent
from rlref.envs.ids import name_of, resolved
from rlref.envs.interface import check_host, check_interface
from rlref.envs.params import plain_values
from rlref.errors import UsageError
from rlref.health import findings
from rlref.health.engine import Diagnosis, diagnose, full_precision
from rlref.runs import checkpoint, files, hosts, provenance, trained
from rlref.runs import sinks as metric_sinks
from rlref.runs.display import Display, default
from rlref.runs.extension import check_extension
from rlref.runs.folder import Folder, read_about, read_summary
from rlref.runs.group import Clock, Group
from rlref.runs.job import Job, check_same, job_of_folder, lengthened
from rlref.runs.keeper import Keeper
from rlref.runs.metric_pieces import Pieces, assembled, extent
from rlref.runs.plan import Plan, job_bytes, make_plan
from rlref.runs.programs import compile_to_fit
from rlref.runs.run import Run, summarise
from rlref.runs.stopping import signals
from rlref.settings import arrays_for_lists, in_json


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
    sinks: Sequence[str | metric_sinks.Sink] | None = None,
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
      env: an environment of gymnax >= 1.0, or of gymnasium; without one, what `config.env_id` names.
      env_params: its parameters; its defaults without.
      run_dir: the folder to write the run to, which must not exist; without one the run stays in memory.
      note: the question that this run is to answer; kept in its folder.
      eval_every: updates between evaluations of `eval_episodes` episodes per seed, greedy and (but for DQN) sampled,
        and one more after the last update; 0 for none.
      checkpoint_every: updates between checkpoints in the run's folder; None: about one a minute; 0: none while it
        trains. There is one when it ends, and one when it is stopped, in any case.
      memory_gb: how much memory training may take, in 1e9 bytes; without it, 80 % of what is free.
      sinks: where metrics go as they come, besides the run's folder: "tensorboard", "csv", "parquet", all of them in
        the folder, or objects of your own; see rlref/runs/sinks.py. None: "tensorboard", if tensorboardX is installed.
      command: kept in the run's folder.
      display: where to show progress; without one, under the cell of a notebook, and elsewhere nowhere.

    Raises UsageError, in one line, before anything is trained or written, for whatever cannot work. Ctrl-C and SIGTERM
    end the training after the chunk under way; the Run has what was reached, and "interrupted" as its summary's status.
    Its summary's "seconds" say where the time went, as `Clock` has it, in this call: not before, in a run resumed.
    """
    display = display or default()
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
    check_numbers(num_seeds=num_seeds, seed=seed, eval_every=eval_every, eval_episodes=eval_episodes)
    check_numbers(checkpoint_every=checkpoint_every)
    num_seeds, seed, eval_every, eval_episodes = int(num_seeds), int(seed), int(eval_every), int(eval_episodes)
    if seed + num_seeds > 2**31:
        sums = f"seed + num_seeds is {seed + num_seeds}"
        raise UsageError(f"{sums}; seeds are numbers below 2**31, and jax would silently fold larger ones")
    path = None if run_dir is None else Path(run_dir)
    chosen: list[str | metric_sinks.Sink] = []
    with hosts.fail_together():
        if hosts.is_first():
            if path is not None and path.exists():
                raise UsageError(f"{path} exists already and is never overwritten; give another --run-dir")
            chosen = metric_sinks.validated(metric_sinks.default(path) if sinks is None else sinks, path)
    own_env = env is not None
    env, env_params = resolved(config.env_id, env, env_params)
    if own_env:  # errors, the folder and reports name it
        config = dataclasses.replace(config, env_id=name_of(env))
    check_interface(env, env_params, config.env_id)
    seeds = list(range(seed, seed + num_seeds))
    job = Job(module, config, env, env_params, seeds, eval_every, eval_episodes, own_env)
    if eval_every > job.agent.num_updates:
        updates = job.agent.num_updates
        raise UsageError(f"eval_every is {eval_every}, more than the {updates} updates of this training")
    clock = Clock()
    plan = make_plan(job.num_rows, job_bytes(job, path is not None), memory_gb, display)
    _ = job.policy_leaves  # so that a policy that cannot act is refused now, and not at the end

    folder = None
    with hosts.fail_together():
        if path is not None and hosts.is_first():
            about = {
                **job.about,
                "command": list(command),
                "note": note,
                "num_settings": job.num_settings,
                "env_params_values": in_json(plain_values(env_params)),
                "num_updates": job.agent.num_updates,
                "steps_per_update": job.agent.steps_per_update,
                "rows_per_group": plan.rows,
                "checkpoint_every": checkpoint_every,
                "sinks": metric_sinks.built_in_names(chosen),
            }
            folder = Folder.create(path, job.source, job.code, about)
    return run_job(
        job, plan, path, folder, checkpoint_every, display, sinks=metric_sinks.instantiated(chosen), clock=clock
    )


def resume(
    run_dir: str | Path,
    *,
    total_timesteps: int | None = None,
    agent: str | os.PathLike[str] | ModuleType | None = None,
    env: Any = None,
    env_params: Any = None,
    checkpoint_every: int | None = None,
    memory_gb: float | None = None,
    sinks: Sequence[str | metric_sinks.Sink] = (),
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
    display = display or default()
    check_numbers(checkpoint_every=checkpoint_every)
    path = Path(run_dir)
    job = job_of_folder(path, agent, env, env_params)
    about = read_about(path, strict=True)
    check_interface(job.env, job.env_params, job.config.env_id)
    if total_timesteps is not None:
        job = lengthened(job, total_timesteps)
    if checkpoint_every is None:
        checkpoint_every = about["checkpoint_every"]
    clock = Clock()
    plan = make_plan(job.num_rows, job_bytes(job, True), memory_gb, display, about["rows_per_group"])
    _ = job.policy_leaves
    folder, changed, reopen = None, [], None
    with contextlib.ExitStack() as undo:
        with hosts.fail_together():
            if hosts.is_first():
                folder = undo.enter_context(contextlib.closing(Folder(path)))
        seems_finished = read_summary(path) is not None
        firsts = range(0, job.num_rows, plan.rows)
        newest = [newest_update(job, path, first, verify=seems_finished) for first in firsts]
        if not any(newest) and not any((path / "metrics").glob("*")):  # it was stopped before anything was trained
            plan = plan._replace(fixed=False)
        if seems_finished and min(newest) == job.agent.num_updates:
            raise UsageError(
                f"{path} is finished: it has all of its {job.agent.num_updates} updates; "
                "more --total-timesteps extend it"
            )
        if folder:
            with contextlib.suppress(UsageError):  # it is damaged, and written anew
                changed = provenance.changes(
                    files.read_json(path / "environment.json"), provenance.environment(job.source)
                )
            if changed:
                display.warn(f"{path} goes on elsewhere, so not bit for bit as it would have: {'; '.join(changed)}")
        if not getattr(job.env, "can_be_saved", True):
            name = job.config.env_id
            display.warn(f"{name} cannot be saved: episodes under way begin anew, the old ones cut as by a time limit")
        chosen: list[str | metric_sinks.Sink] = []
        with hosts.fail_together():
            if folder:
                had = about.get("sinks")
                chosen = metric_sinks.for_resumed_run(had, sinks, path, display.warn)
                about["sinks"] = list(dict.fromkeys([*(had or []), *metric_sinks.built_in_names(chosen)]))
                about |= job.about | {"num_updates": job.agent.num_updates}
                reopen = functools.partial(folder.reopen, in_json(about), job.source, list(command))
        undo.pop_all()
    return run_job(
        job, plan, path, folder, checkpoint_every, display, sinks=metric_sinks.instantiated(chosen), clock=clock,
        reopen=reopen,
    )  # fmt: skip


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
    with contextlib.closing(checkpoint.Checkpoints(path, first_row)) as checkpoints:
        for update in checkpoints.updates():
            with contextlib.suppress(checkpoint.DamagedError):
                record = checkpoints.record(update)
                saved = check_same(job, record.about, path)
                if saved is not job:
                    check_extension(saved, job, checkpoints.load(record), path, first_row)
                elif verify:
                    checkpoints.load(record)
                return update
    return 0


def run_job(
    job: Job,
    plan: Plan,
    path: Path | None,
    folder: Folder | None,
    checkpoint_every: int | None,
    display: Display,
    limit: int | None = None,
    sinks: Sequence[metric_sinks.Sink] = (),
    clock: Clock | None = None,
    reopen: Callable[[], None] | None = None,
) -> Run:
    """Train a job from where its folder is to the end, or for its first `limit` updates.

    `path` is None for a run in memory; in all processes but the first `folder` is None and `sinks` is empty. `clock`
    was started when the job was about to be traced. `reopen` notes in the folder that the run goes on: once it is
    compiled, so that a run whose compiling fails, or is stopped, is as it was.
    """
    num_updates = job.agent.num_updates if limit is None else min(limit, job.agent.num_updates)
    pieces: Pieces = {}
    policies = []
    steps_before, stopped, complete = 0.0, 0, True
    with contextlib.ExitStack() as stack:
        if folder:
            stack.enter_context(contextlib.closing(folder))
        clock = clock or Clock()
        programs, fitted = compile_to_fit(job, plan, display)
        with hosts.fail_together():
            if reopen:
                reopen()
            if folder and fitted.rows != plan.rows:
                folder.amend(rows_per_group=fitted.rows)
        plan = fitted
        clock.book("compiling")
        stop = stack.enter_context(signals())
        opened = metric_sinks.Sinks(sinks, path, display.warn)
        stack.callback(opened.close)  # whatever happens
        for first in range(0, job.num_rows, plan.rows):
            group = Group(programs, plan, job, first, clock)
            if job.num_rows > plan.rows:
                display.say(f"rows {first} to {first + group.real - 1} of {job.num_rows}")
            keeper = Keeper(job, group, path, folder, pieces, opened, display)
            start = keeper.restore()
            check_host(job.env)
            steps_before += group.env_steps.sum()
            for update, values in group.train(start, num_updates, checkpoint_every, stop):
                check_host(job.env)
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

        _, updates = extent(pieces)
        shape = (*job.shape, updates)
        joined = assembled(pieces, shape)
        run = Run(job.name, job.settings, job.seeds, joined, {}, job.batched, job.agent.num_updates, path)
        run.trained = trained.Trained(job, {name: np.concatenate([p[name] for p in policies]) for name in policies[0]})
        train_seconds = sum(clock.seconds.values()) - clock.seconds["compiling"]
        steps = float(np.nansum(stats.last(run.metrics["env_steps"])))
        run.summary = {
            "status": "interrupted" if stopped else "finished" if complete else "incomplete",
            "all_written": complete,
            # In the last chunk a signal is too late for this run, but not for what was to come after it.
            **({"stopped_by": signal.Signals(stop.signal or stopped).name} if stop.signal or stopped else {}),
            **summarise(run),
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
                run.summary |= {"status": "interrupted" if stopped else "incomplete", "all_written": False}
    return run


def verdict_so_far(job: Job, pieces: Pieces, first: int) -> Diagnosis:
    """What the health checks say of the group of rows from `first` on, after the metrics in `pieces`."""
    own = {(0, update): piece for (row, update), piece in pieces.items() if row == first}
    config = {name: x for name, x in job.settings.items() if name not in job.batched}
    rows, updates = extent(own)
    return diagnose(
        assembled(own, (rows, updates)),
        config,
        num_updates=job.agent.num_updates,
        seeds=job.row_seeds[first : first + rows].tolist(),
        exact=full_precision(),
    )
