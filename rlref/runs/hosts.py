"""Several processes that train one run together, each its share of the seeds; with one process nothing happens here.

Every process runs the same program in the same order and calls these functions at the same points.
"""

import contextlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from rlref.errors import UsageError, first_line


def initialize(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Join the processes of this job, before jax is used for anything else; jax knows SLURM, Open MPI and cloud TPUs.

    Args:
      coordinator: host:port of process 0, where nothing of the above tells.
      num_processes: how many there are; likewise.
      process_id: which one this is, from 0; likewise.

    Raises UsageError if they do not find each other.
    """
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"the processes do not find each other: {first_line(error)} Under SLURM use srun; elsewhere give "
            "--coordinator HOST:PORT, --num-processes and --process-id"
        ) from error


def is_first() -> bool:
    """Whether this process is the one that writes the run's folder and speaks to the user."""
    return jax.process_index() == 0


def gathered(values: Sequence[int]) -> np.ndarray:
    """Every process's `values`, whole numbers below 2^31: `[process, value]`."""
    if jax.process_count() == 1:
        return np.asarray([values])
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(values, np.int32)))


def to_host(x: jax.Array) -> np.ndarray:
    """An array that is spread over all processes, whole, on each of them."""
    if x.is_fully_addressable:
        return np.asarray(x)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def broadcast_text(text: str) -> str:
    """The first process's `text`."""
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    padded = np.frombuffer(text.encode().ljust(4096), np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes().decode().rstrip()


@contextlib.contextmanager
def fail_together() -> Iterator[None]:
    """Around what the first process does alone: if it fails, the others stop as well instead of waiting for it."""
    failed = True
    try:
        yield
        failed = False
    finally:
        if gathered([failed]).any() and not failed:
            raise UsageError("another process of this job could not go on; its message says why")
