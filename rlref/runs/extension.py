"""Whether a run can be extended: not where something is scheduled over the whole training."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core

from rlref.errors import UsageError
from rlref.runs import checkpoint
from rlref.runs.job import Job
from rlref.runs.leaves import named_leaves

TRIED = 16  # updates, spread over the training, at which both must do the same


def check_extension(shorter: Job, longer: Job, arrays: dict[str, np.ndarray], path: Path, first_row: int = 0) -> None:
    """Raise UsageError, with the reason, unless `longer` does at every update of `shorter` what that does there.

    They do if their programs are the same; or, as a schedule may go from a value to itself, if all that is scheduled is
    the same, and if from a row's state both give the same at updates all over it. `arrays` are the states of the rows
    from `first_row` on; of each setting among them one row is tried.
    """
    if shorter.batched and _programs(shorter) == _programs(longer):
        return
    rows = min(len(next(iter(arrays.values()))), shorter.num_rows - first_row)
    setting = (first_row + np.arange(rows)) // len(shorter.seeds)
    for place in np.unique(setting, return_index=True)[1].tolist():
        one = {name: x[place : place + 1] for name, x in arrays.items()}
        _check_row(shorter, longer, one, path, first_row + place)


def _programs(job: Job) -> list[str]:
    """How a seed begins, and an update, as programs that take the settings: the same for all that are batched."""

    def init(config: Any, key: jax.Array) -> Any:
        return job.make(config).init(key)

    def update(config: Any, state: Any, step: jax.Array) -> Any:
        return job.make(config).update(state, step)

    config, key = job.config_of(0), jax.random.key(0)
    state = jax.eval_shape(init, config, key)
    lowered = jax.jit(init).lower(config, key), jax.jit(update).lower(config, state, jnp.int32(0))
    return [program.as_text() for program in lowered]


def _check_row(shorter: Job, longer: Job, state: dict[str, np.ndarray], path: Path, row: int) -> None:
    before, after = (job.make(job.config_of(row)) for job in (shorter, longer))
    key = jax.random.key(0)
    if jax.jit(before.init).lower(key).as_text() != jax.jit(after.init).lower(key).as_text():
        raise UsageError(f"{path} cannot be extended: its seeds begin otherwise when there are more updates")
    shapes = jax.eval_shape(before.init, key)
    first, second = (jax.jit(agent.update).lower(shapes, jnp.int32(0)).as_text() for agent in (before, after))
    if first == second:
        return
    planned, wanted = schedules(before), schedules(after)
    changed = [name for name, x in planned.items() if not np.array_equal(x, wanted[name][: len(x)], equal_nan=True)]
    if changed or not _same_updates(before, after, state):
        why = " and ".join(f"{name} runs from {planned[name][0]:.4g} to {planned[name][-1]:.4g}" for name in changed)
        raise UsageError(
            f"{path} cannot be extended: {why or 'its updates depend on how many there are,'} over all "
            f"{before.num_updates} updates, and those already done would not be what a longer training does there"
        )


def _same_updates(before: Any, after: Any, one: dict[str, np.ndarray]) -> bool:
    like = jax.eval_shape(jax.vmap(before.init), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1)))
    rows = checkpoint.place(one, like, 1, jax.sharding.SingleDeviceSharding(jax.local_devices()[0]))
    state = jax.tree.map(lambda x: x[0], rows)
    updates = [jax.jit(agent.update) for agent in (before, after)]
    for step in np.unique(np.linspace(0, before.num_updates - 1, TRIED, dtype=np.int32)):
        a, b = (
            {name: np.asarray(checkpoint.raw(x)) for name, x in named_leaves(f(state, step)).items()} for f in updates
        )
        if any(x.tobytes() != b[name].tobytes() for name, x in a.items()):
            return False
    return True


def schedules(agent: Any) -> dict[str, np.ndarray]:
    """The diagnostics that follow from the step alone, `[num_updates]`: learning rates, epsilons."""
    state = jax.eval_shape(agent.init, jax.random.key(0))
    traced, shapes = jax.make_jaxpr(agent.update, return_shape=True)(state, jnp.int32(0))
    *of_state, step = traced.jaxpr.invars
    sources: dict[Any, set[str]] = {step: {"step"}} | {var: {"state"} for var in of_state}
    for eqn in traced.jaxpr.eqns:
        read = set().union(*(sources.get(var, set()) for var in eqn.invars if not isinstance(var, jax_core.Literal)))
        sources |= dict.fromkeys(eqn.outvars, read)
    names = sorted(shapes[1])
    outputs = zip(names, traced.jaxpr.outvars[-len(names) :], strict=True)
    variables = {name: var for name, var in outputs if not isinstance(var, jax_core.Literal)}
    chosen = [name for name, var in variables.items() if sources.get(var) == {"step"}]

    def of_step(step: jax.Array) -> dict[str, jax.Array]:
        diagnostics = agent.update(agent.init(jax.random.key(0)), step)[1]
        return {name: diagnostics[name] for name in chosen}

    steps = jnp.arange(agent.num_updates)
    return {name: np.asarray(x) for name, x in jax.jit(lambda steps: jax.lax.map(of_step, steps))(steps).items()}
