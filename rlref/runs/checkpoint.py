"""Checkpoints of a run: the whole state of a group of rows, saved by Orbax in the background.

    RUN/checkpoints/row000000/120/     the rows from 0 on, after 120 updates; the newest two are kept

Orbax writes atomically, but loads a flipped bit as a wrong number. So a record goes with each checkpoint: what was
trained, and a digest of every leaf. What does not agree with its record is never loaded.
"""

import contextlib
import dataclasses
import functools
import gc
import json
import logging
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlref.errors import UsageError, in_a_line
from rlref.runs import hosts
from rlref.runs.compiling import padded_rows
from rlref.runs.leaves import named_leaves

KEPT = 2


class DamagedError(Exception):
    """A checkpoint that cannot be trusted; the text says what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What a checkpoint says about itself."""

    about: dict[str, Any]
    """what was trained: a run with another `about` cannot go on from here"""
    first_row: int
    rows: int
    """rows that count; those after them only fill up the devices"""
    padded: int
    """rows that are stored"""
    update: int
    """updates done"""
    leaves: dict[str, list[Any]]
    """of each leaf: its dtype, a row's shape, and the digest of all rows that count"""


class Checkpoints:
    """The checkpoints of one group of rows."""

    def __init__(self, folder: Path, first_row: int, writes: bool = True):
        """Open them. Who trains the run, and so holds its lock, `writes`: that clears away what was half written."""
        from orbax.checkpoint import v1 as ocp

        logging.getLogger("absl").addFilter(not_of_orbax)
        hush_closed_loops()
        self.first_row = first_row
        self.path = folder.resolve() / "checkpoints" / f"row{first_row:06d}"
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        self.orbax = ocp.training.Checkpointer(
            self.path,
            context=context,
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=ocp.training.preservation_policies.LatestN(KEPT),
            cleanup_tmp_directories=writes,
        )

    def save(self, about: dict[str, Any], rows: int, update: int, state: Any) -> None:
        """Begin to save the state `[padded rows, ...]` after `update` updates; returns once it may be donated."""
        arrays = {name: raw(x) for name, x in named_leaves(state).items()}
        sums = digests(arrays, rows)
        leaves = {name: [str(x.dtype), list(x.shape[1:]), sums[name]] for name, x in arrays.items()}
        padded = next(iter(arrays.values())).shape[0]
        record = json.dumps(dataclasses.asdict(Record(about, self.first_row, rows, padded, update, leaves)))
        stored = {name: x for name, x in arrays.items() if x.size}  # Orbax takes no empty arrays
        parts = {"state": stored, "record": {"text": record, "crc32": zlib.crc32(record.encode())}}
        self.orbax.save_checkpointables_async(update, parts, force=True, overwrite=True)

    def wait(self) -> None:
        """Wait for what is being saved. Raises what the saving raised: errors of many kinds."""
        with quiet():
            self.orbax.wait()

    def close(self) -> None:
        """`wait`, and the end."""
        with quiet():
            self.orbax.close()

    def updates(self) -> list[int]:
        """The updates after which there is a checkpoint, or something that looks like one; newest first."""
        return sorted((x.step for x in self.orbax.checkpoints), reverse=True)

    def record(self, update: int) -> Record:
        """What the checkpoint says about itself. Raises DamagedError."""
        try:
            with quiet():
                saved: Any = self.orbax.load_checkpointables(update, {"record": None})["record"]
            text = saved["text"]
            intact = zlib.crc32(text.encode()) == saved["crc32"]
        except Exception as error:  # Orbax and its file formats: anything can come from a damaged folder
            raise DamagedError(f"it has no readable record ({first_cause(error)})") from error
        if not intact:
            raise DamagedError("its record is damaged")
        record = Record(**json.loads(text))
        if (record.update, record.first_row) != (update, self.first_row):
            raise DamagedError(f"it is of update {record.update} of the rows from {record.first_row} on")
        return record

    def load(self, record: Record, names: list[str] | None = None) -> dict[str, np.ndarray]:
        """The rows that count, on the host, of the leaves `names` (or of all). Raises DamagedError."""
        wanted = record.leaves if names is None else {name: record.leaves[name] for name in names}
        empty = {name: np.empty((record.padded, *shape), dtype) for name, (dtype, shape, _) in wanted.items()}
        try:
            with quiet():
                stored = {name: x for name, x in empty.items() if x.size}
                loaded: Any = self.orbax.load_checkpointables(record.update, {"state": stored})["state"]
        except Exception as error:  # as above
            raise DamagedError(f"it does not load ({first_cause(error)})") from error
        arrays = {name: np.asarray(loaded.get(name, x))[: record.rows] for name, x in empty.items()}
        for name, (dtype, shape, digest) in wanted.items():
            x = arrays[name]
            if str(x.dtype) != dtype or x.shape != (record.rows, *shape) or row_digest(x, 0) != digest:
                raise DamagedError(f"the digest of its {name} does not agree with its record")
        return arrays

    def set_aside(self, update: int, why: str, warn: Callable[[str], None]) -> None:
        """Warn of a damaged checkpoint and move it out of the way; nothing is deleted."""
        target = self.path / f"damaged-{update}"
        while target.exists():
            target = target.with_name(target.name + "-again")
        warn(f"the checkpoint {self.path / str(update)} is not used, and is now called {target.name}: {why}")
        with hosts.fail_together():
            if hosts.is_first():
                (self.path / str(update)).rename(target)
        self.orbax.reload()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """When Orbax fails to read or write, it leaves the rest to complain in the background, by the hundred: not here."""
    logger, hook = logging.getLogger("asyncio"), sys.unraisablehook
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    sys.unraisablehook = lambda unraisable: None
    try:
        yield
    except Exception:
        time.sleep(0.5)  # for them to end
        gc.collect()
        raise
    finally:
        logger.setLevel(level)
        sys.unraisablehook = hook


@functools.cache
def hush_closed_loops() -> None:
    """When a write fails, TensorStore's threads tell of every other one to an event loop that Orbax has closed."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook


def not_of_orbax(message: logging.LogRecord) -> bool:
    """Whether to log a message: what Orbax says of damaged folders is said here in one line."""
    return "orbax" not in message.pathname


def first_cause(error: BaseException) -> str:
    """What an error began with, in a line."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return in_a_line(error)


def raw(x: jax.Array) -> jax.Array:
    """A leaf as plain numbers: a PRNG key as its data."""
    return jax.random.key_data(x) if is_key(x) else x


def is_key(x: Any) -> bool:
    return jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def impl_of(shape: Any) -> Any:
    """The generator of a key of which only the shape is at hand."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), shape)
    return found[0]


def row_digest(x: np.ndarray, first: int) -> int:
    """The sum over rows, modulo 2^32, of their CRC-32 begun at the row's index.

    A sum, so that processes can each do their rows, however rows are laid out.
    """
    return sum(zlib.crc32(np.ascontiguousarray(row).data, first + i) for i, row in enumerate(x)) % 2**32


def digests(arrays: dict[str, jax.Array], rows: int) -> dict[str, int]:
    """The digest of every leaf's first `rows` rows, which may be spread over devices and processes."""
    own = []
    for x in arrays.values():
        parts = [(shard.index[0].start or 0, shard.data) for shard in x.addressable_shards if shard.replica_id == 0]
        own.append(sum(row_digest(np.asarray(data)[: max(0, rows - at)], at) for at, data in parts) % 2**32)
    halves = hosts.gathered([half for x in own for half in divmod(x, 2**16)]).sum(0)  # below 2^31 each
    sums = [int(high * 2**16 + low) % 2**32 for high, low in halves.reshape(-1, 2)]
    return dict(zip(arrays, sums, strict=True))


def part_of(x: np.ndarray, padded: int, index: tuple[slice, ...]) -> np.ndarray:
    """Those rows that `index` names of `x`, filled up to `padded` rows with its last one."""
    return x[padded_rows(len(x), padded)[index[0]]]


def place(arrays: dict[str, np.ndarray], like: Any, padded: int, sharding: Any) -> Any:
    """A state `[padded, ...]` on the devices from rows on the host; the last row fills up.

    `like` is the state's tree of shapes `[padded, ...]`. Raises UsageError if it is not the tree that was saved.
    """
    shapes = named_leaves(like)
    found = {name: x.shape[1:] for name, x in arrays.items()}
    want = {name: jax.eval_shape(raw, x) for name, x in shapes.items()}
    for name in [*want, *found]:
        here = f"{want[name].dtype} {list(want[name].shape[1:])}" if name in want else "not there"
        there = f"{arrays[name].dtype} {list(found[name])}" if name in found else "not there"
        if here != there:
            raise UsageError(f"the state's {name} is {there} in the checkpoint and {here} in this agent")
    leaves = []
    for name, shape in shapes.items():
        part = functools.partial(part_of, arrays[name], padded)
        leaf = jax.make_array_from_callback((padded, *found[name]), sharding, part)
        if is_key(shape):
            wrap = functools.partial(jax.random.wrap_key_data, impl=impl_of(shape))
            leaf = jax.jit(wrap, out_shardings=sharding)(leaf)
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
