"""Keeping a group's metrics and checkpoints while it trains, and going on from them."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlref.errors import UsageError, in_a_line
from rlref.runs import checkpoint, hosts, sinks
from rlref.runs.display import Display
from rlref.runs.folder import Folder
from rlref.runs.group import Group
from rlref.runs.job import Job
from rlref.runs.metric_pieces import Pieces, assembled, pieces_until

WRITE_SECONDS = 5.0  # metrics are written to the run's folder this often


def rows_of(job: Job) -> list[sinks.Row]:
    """What a job's rows are, for sinks."""
    plain, seeds, labels = job.settings, job.row_seeds.tolist(), job.labels
    settings = [None if job.num_settings is None else i // len(job.seeds) for i in range(job.num_rows)]
    return [
        sinks.Row(
            i, label, seed, setting, plain | {name: plain[name][setting] for name in job.batched}, tuple(job.batched)
        )
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
        folder: Folder | None,
        pieces: Pieces,
        sinks: sinks.Sinks,
        display: Display,
    ):
        self.job, self.group, self.path, self.folder = job, group, path, folder
        self.pieces, self.sinks, self.display = pieces, sinks, display
        self.clock = group.clock
        self.checkpoints = None if path is None else checkpoint.Checkpoints(path, group.first)
        self.saved = 0  # updates done at the newest checkpoint
        self.complete = True  # whether the newest checkpoint and all metrics until then are on disk

    def restore(self) -> int:
        """Bring the group to its newest checkpoint, or to its start; returns the updates done."""
        group, update = self.group, 0
        kept: Pieces = {}
        newest = self._newest()
        if newest is None:
            group.state = group.programs.init(group.config, group.seeds)
            self.clock.book("training")
        else:
            update, kept, arrays = newest
            group.state = checkpoint.place(arrays, group.programs.state, group.padded, group.by_row)
            last = kept[max(kept)]
            if self.job.eval_every and update % self.job.eval_every and update < self.job.agent.num_updates:
                # An evaluation here was that of the end, before the run was extended.
                last |= {name: _without_last(x) for name, x in last.items() if name.startswith("eval_")}
            group.env_steps = last["env_steps"][:, -1].astype(np.float64)
            self.display.say(f"going on after update {update}")
        self.pieces |= kept
        self.saved = update
        with hosts.fail_together():
            if self.folder:
                dropped = self.folder.cut(group.first, kept)
                if dropped and not update:
                    self.display.warn("there is no checkpoint to go on from: the training begins again")
        self.clock.book("checkpoints")
        self.sinks.open(rows_of(self.job)[group.first :][: group.real], self._history(kept, update))
        self.clock.book("logging")
        return update

    def _history(self, kept: Pieces, update: int) -> dict[str, np.ndarray]:
        """All metrics of the first `update` updates, `[rows, update]`: every name also where there are none yet."""
        shape = self.group.real, update
        joined = assembled({(0, start): piece for (_, start), piece in kept.items()}, shape)
        return {name: joined.get(name, np.full(shape, np.nan, np.float32)) for name in self.group.names}

    def _newest(self) -> tuple[int, Pieces, dict[str, np.ndarray]] | None:
        """The newest checkpoint that can be trusted: its update, all metrics until then, its leaves on the host."""
        if self.checkpoints is None or self.path is None:
            return None
        for update in self.checkpoints.updates():
            try:
                record = self.checkpoints.record(update)
                if record.rows != self.group.real:
                    raise checkpoint.DamagedError(f"it has {record.rows} rows, where the run has {self.group.real}")
                pieces = pieces_until(self.path, self.group.first, update)
                return update, pieces, self.checkpoints.load(record)
            except (checkpoint.DamagedError, UsageError) as error:
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
            with hosts.fail_together():
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
