"""One row of training, traced once: its update, and how much memory it takes."""

import collections
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core as jax_core

from rlref.contract import check_update
from rlref.envs import totals
from rlref.errors import errors_with_line
from rlref.runs import compiling

IN_PLACE = {"dynamic_update_slice", "scatter", "scan", "while", "cond", "jit", "pjit"}  # operations that write in place


class TracedRow(NamedTuple):
    """One row as it was traced, and what it takes."""

    update: Callable[[Any, Any, jax.Array], tuple[Any, dict[str, jax.Array]]]
    """from config, state and step; as it was traced, for that takes nearly a second"""
    state: Any
    """the shapes of its state"""
    names: list[str]
    """of the diagnostics that an update gives"""
    peak_bytes: int
    """memory at its peak: the state, and the largest moment of an update"""
    state_bytes: int
    """of its state alone"""


def trace_row(make: Callable[[Any], Any], config: Any, name: str = "agent", source: Path | None = None) -> TracedRow:
    """Trace `init` and `update` of the agent that `make` gives for a Config.

    Raises UsageError if `update` does not return a state like the one it gets and a dictionary of numbers, with
    env_steps among them, or if either raises. `name` is what the agent is called there, `source` is its file.
    """
    config = jax.tree.map(lambda x: jax.ShapeDtypeStruct((), jnp.float32), config)
    with errors_with_line(name, source, named=False):
        state = jax.eval_shape(lambda c, key: make(c).init(key), config, jax.random.key(0))

    def update(config: Any, state: Any, step: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        returned = make(config).update(totals.cleared(state), step)
        check_update(name, state, returned, source)
        after, diagnostics = returned
        return after, diagnostics | totals.info_metrics(after)

    with errors_with_line(name, source):
        jaxpr, shapes = jax.make_jaxpr(update, return_shape=True)(config, state, jnp.int32(0))

    def as_traced(config: Any, state: Any, step: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        leaves = jax_core.jaxpr_as_fun(jaxpr)(*jax.tree.leaves((config, state, step)))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    # A custom_vmap's function is called again for a batch, when what it closes over must be of that trace.
    again = "custom_vmap_call" in primitives(jaxpr.jaxpr)
    state_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    return TracedRow(update if again else as_traced, state, sorted(shapes[1]), peak_bytes(jaxpr.jaxpr), state_bytes)


def primitives(jaxpr: Any) -> set[str]:
    """The names of all operations in a traced program."""
    subs = [sub for eqn in jaxpr.eqns for sub in jax_core.jaxprs_in_params(eqn.params)]
    return {eqn.primitive.name for eqn in jaxpr.eqns}.union(*map(primitives, subs))


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


def free_bytes() -> int:
    """Free memory, of all devices of this process together."""
    if compiling.on_cpu():
        import psutil

        return int(min(psutil.virtual_memory().available, free_in_cgroups()))
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return sum(s.get("bytes_limit", 2**33) - s.get("bytes_in_use", 0) for s in stats)


def free_in_cgroups(own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> float:
    """What a container, or a scheduler's job, leaves this process of memory, in bytes; inf where none is limited.

    A limit holds for all that is below it, so each group from this process's own to the root is asked (Linux's
    cgroup-v2 and cgroup-v1 manuals). Cached files count as free: they go where memory is short.
    """
    free = math.inf
    for line in own.read_text().splitlines() if own.is_file() else []:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            top, limit, used, cached = mounted, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top = mounted / "memory"
            limit, used, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        group = top / name.lstrip("/")
        for folder in (group, *group.parents)[: len(group.relative_to(top).parts) + 1]:
            with contextlib.suppress(OSError, ValueError, KeyError):  # not every group says so, and "max" is no number
                of_cache = dict(x.split() for x in (folder / "memory.stat").read_text().splitlines())[cached]
                left = int((folder / limit).read_text()) - int((folder / used).read_text()) + int(of_cache)
                free = min(free, left)
    return free
