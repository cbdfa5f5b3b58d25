"""The compiled programs of a training: the first state, a chunk of updates, an evaluation."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rlref.runs import compiling, playing
from rlref.runs.display import Display
from rlref.runs.job import Job
from rlref.runs.plan import Plan, rows_at_once

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
            return playing.evaluate(job.make(config), state, key, job.env, job.env_params, job.eval_episodes)

        return jax.vmap(one, (config_axis, 0, 0))(config, state, keys)

    def lower(f: Callable[..., Any], shardings: tuple[Any, ...], arguments: tuple[Any, ...], **options: Any) -> Any:
        f = compiling.on_each_device(f, plan.mesh, tuple(sharding.spec for sharding in shardings), P("seed"))
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
    return Programs(compiled["init"], compiled["chunk"], chunk_size, compiled.get("evaluate"), names, eval_names, state)
