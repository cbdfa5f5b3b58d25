"""Rows that train at once: chunk after chunk of updates on the devices, with the host one chunk behind."""

import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rlref.runs import hosts
from rlref.runs.compiling import padded_rows
from rlref.runs.job import Job
from rlref.runs.leaves import named_leaves
from rlref.runs.plan import Plan
from rlref.runs.programs import Programs
from rlref.runs.stopping import Stop

CHUNK_SECONDS = 0.5  # how long a chunk of updates should take: how often the host looks, and how long Ctrl-C waits
CHECKPOINT_SECONDS = 60.0  # checkpoints are written this often, unless the caller says after how many updates


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


class Group:
    """Rows that train at once: those of `job` from `first` on. Where the time goes is booked in `clock`."""

    def __init__(self, programs: Programs, plan: Plan, job: Job, first: int, clock: Clock | None = None):
        self.programs, self.job, self.first, self.clock = programs, job, first, clock or Clock()
        self.by_row = NamedSharding(plan.mesh, P("seed"))
        self.padded, self.real = plan.padded, min(plan.rows, job.num_rows - first)
        rows = first + padded_rows(self.real, plan.padded)  # padding is dropped when metrics are read
        config = job.config if job.row_config is None else take(job.row_config, rows)
        self.config = jax.tree.map(
            lambda x: jax.device_put(np.float32(x), NamedSharding(plan.mesh, P("seed") if np.ndim(x) else P())), config
        )
        self.seeds = jax.device_put(job.row_seeds[rows].astype(np.int32), self.by_row)
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
                begun = time.monotonic()
                self.state, buffer = self.programs.chunk(self.config, self.state, np.int32(done), np.int32(size))
                results = None
                if self.programs.evaluate and ((done + size) % eval_every == 0 or done + size == num_updates):
                    results = self.programs.evaluate(self.config, self.state, self.seeds, np.int32(done + size))
                since = time.monotonic()
                # A GPU that asks the host at each turn of a loop is done by now; a CPU has hardly begun.
                dispatched = done, size, buffer, results, since, since - begun
                done += size
                due = bool(checkpoint_every and done % checkpoint_every == 0)
            if pending is not None:
                update, size, buffer, results, since, within = pending
                values = self._read(buffer, size, results)
                now = time.monotonic()
                # The devices began this chunk when it was sent off, or when the one before was finished.
                seconds = max(now - max(since, finished), within)
                finished = now
                before, self.env_steps = self.env_steps, values["env_steps"][:, -1].astype(np.float64)
                values["steps_per_second"] = np.full_like(
                    values["env_steps"], (self.env_steps.sum() - before.sum()) / seconds
                )
                count = max(1, min(self.programs.chunk_size, int(size * CHUNK_SECONDS / seconds), 8 * size))
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
        leaves = named_leaves(self.state)
        return {name: hosts.to_host(leaves[name])[: self.real] for name in self.job.policy_leaves}


def take(tree: Any, index: Any) -> Any:
    """`x[index]` of every leaf."""
    return jax.tree.map(lambda x: x[index], tree)
