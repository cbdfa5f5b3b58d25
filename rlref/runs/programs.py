"""The compiled programs of a training: the first state, a chunk of updates, an evaluation."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rlref.runs import compiling, hosts, playing
from rlref.runs.display import Display
from rlref.runs.job import Job
from rlref.runs.plan import Plan, rows_at_once, smaller

MAX_CHUNK = 256  # updates of one chunk at most


class Programs(NamedTuple):
    """The compiled programs over one group's rows."""

    init: Callable[..., Any]
    chunk: Callable[..., Any]
    chunk_size: int
    """updates of one chunk at most"""
    evaluate: Callable[..., Any] | None
    names: list[str]
    """of the chunk's metrics"""
    eval_names: list[str]
    """of the evaluation's"""
    state: Any
    """the state's tree, of shapes `[padded rows, ...]`"""
    bytes: float
    """that they take of a device at their peak, by XLA's own account"""


def lower_programs(job: Job, plan: Plan, platforms: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
    """Name and lowered program of what trains a group: a chunk of updates, init, and the evaluation if there is one.

    Each is traced when its turn comes, so that XLA can compile one meanwhile. They are lowered for the plan's devices,
    or, to be looked at alone, for `platforms` such as "tpu" and "cuda"; then its mesh may be an AbstractMesh.
    """
    config, row_config = job.config, job.row_config
    by_row, everywhere = NamedSharding(plan.mesh, P("seed")), NamedSharding(plan.mesh, P())
    config_axis, config_sharding = (None, everywhere) if row_config is None else (0, by_row)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((plan.padded,) if row_config is not None else (), jnp.float32), config
    )
    seeds = jax.ShapeDtypeStruct((plan.padded,), jnp.int32)
    chunk_size = longest_chunk(job)

    def init(config: Any, seeds: jax.Array) -> Any:
        return jax.vmap(lambda c, seed: job.make(c).init(jax.random.key(seed)), (config_axis, 0))(config, seeds)

    update = jax.vmap(job.row.update, (config_axis, 0, None))
    state, names = state_of(job, plan), job.row.names
    rows = plan.padded // plan.mesh.size
    block = rows if platforms else rows_at_once(job, rows, plan.mesh)

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

    def evaluate(config: Any, state: Any, seeds: jax.Array, done: jax.Array) -> dict[str, jax.Array]:
        def one(config: Any, state: Any, seed: jax.Array) -> dict[str, jax.Array]:
            key = jax.random.fold_in(jax.random.key(seed), done)
            return playing.evaluate(job.make(config), state, key, job.env, job.env_params, job.eval_episodes)

        return jax.vmap(one, (config_axis, 0, 0))(config, state, seeds)

    def lower(f: Callable[..., Any], shardings: tuple[Any, ...], arguments: tuple[Any, ...], **options: Any) -> Any:
        f = compiling.on_each_device(f, plan.mesh, tuple(sharding.spec for sharding in shardings), P("seed"))
        traced = jax.jit(f, in_shardings=shardings, out_shardings=by_row, **options).trace(*arguments)
        return traced.lower(lowering_platforms=platforms)

    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    shardings = (config_sharding, by_row, everywhere, everywhere)
    yield "chunk", lower(chunk, shardings, (shapes, state, scalar, scalar), donate_argnums=1)
    yield "init", lower(init, (config_sharding, by_row), (shapes, seeds))
    if job.eval_every:
        yield "evaluate", lower(evaluate, (config_sharding, by_row, by_row, everywhere), (shapes, state, seeds, scalar))


def longest_chunk(job: Job) -> int:
    return min(MAX_CHUNK, job.agent.num_updates)


def state_of(job: Job, plan: Plan) -> Any:
    """The state's tree, of shapes `[padded rows, ...]`."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((plan.padded, *x.shape), x.dtype), job.row.state)


def compile_programs(job: Job, plan: Plan, display: Display) -> Programs:
    """Compile what trains a group, one program on other cores while the next is traced."""
    pool, pending = ThreadPoolExecutor(), {}
    with display.compiling("the training"):
        try:
            for name, lowered in lower_programs(job, plan):
                level = compiling.ONCE if name == "init" else compiling.LOOP
                pending[name] = pool.submit(lowered.compile, compiling.options(level, plan.mesh))
            compiled = {name: x.result() for name, x in pending.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C need not wait for XLA
    evaluate = compiled.get("evaluate")
    eval_names = sorted(evaluate.out_info) if evaluate else []
    return Programs(
        compiled["init"],
        compiled["chunk"],
        longest_chunk(job),
        evaluate,
        job.row.names,
        eval_names,
        state_of(job, plan),
        max(map(device_bytes, compiled.values())),
    )


def device_bytes(compiled: Any) -> int:
    """Memory that a compiled program takes of a device: what it is given, makes, and needs meanwhile."""
    if (memory := compiled.memory_analysis()) is None:  # a backend that does not tell
        return 0
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(kept + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes)


def compile_to_fit(
    job: Job, plan: Plan, display: Display, compile: Callable[[Job, Plan, Display], Programs] = compile_programs
) -> tuple[Programs, Plan]:
    """Compile, for smaller groups as long as that takes more memory than the plan may use; the plan it came to.

    Until a program is compiled, nothing tells what an accelerator's layouts and padding add to it. Raises UsageError if
    a single row does not fit, or the rows that the plan has to keep.
    """
    unknown = 2**31 - 1  # MB: XLA refuses what is more than there is, and says in words alone how much
    while True:
        programs, megabytes = None, unknown
        try:
            programs = compile(job, plan, display)
            megabytes = math.ceil(programs.bytes / 1e6)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or plan.budget == math.inf:
                raise
        megabytes = int(hosts.gathered([megabytes]).max())  # of all processes: they go on alike
        if programs and megabytes * 1e6 <= plan.budget:
            return programs, plan
        plan = smaller(plan, job.num_rows, math.inf if megabytes == unknown else megabytes * 1e6)
        found = "more than there is" if megabytes == unknown else f"{megabytes:,} MB of {plan.budget / 1e6:,.0f}"
        display.say(f"compiled, these seeds take {found}: they train in groups of at most {plan.rows}")
