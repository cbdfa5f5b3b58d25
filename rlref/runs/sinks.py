"""Where a run's metrics go while it trains, besides its folder: TensorBoard, CSV, Parquet, or whatever you write.

    rlref.train("ppo", num_seeds=8, run_dir="runs/mine", sinks=["tensorboard", "csv", MySink()])

A sink is any object with the four methods of `Sink`. This one logs to Weights & Biases (0.19.10 or later), a run per
seed, without a network; `wandb sync` sends them off later:

    import math
    import wandb

    class WandB:
        def open(self, path, rows, history):
            about = {"project": "rlref", "group": path and path.name, "mode": "offline", "reinit": "create_new"}
            self.runs = [wandb.init(name=row.label, config=row.config, **about) for row in rows]
            self.write(0, history)  # of a run that goes on: W&B sees a new run, with all of its past

        def write(self, update, values):
            for i, run in enumerate(self.runs):
                for j, step in enumerate(values["env_steps"][i]):
                    point = {name: float(x[i, j]) for name, x in values.items()}
                    run.log({name: x for name, x in point.items() if math.isfinite(x)}, step=int(step))

        def flush(self):
            pass

        def close(self):
            for run in self.runs:
                run.finish()

What raises, because a disk is full or for any other reason, is warned of once and gets no more metrics; the training
goes on, and the run's folder has all metrics in any case. A sink runs on the host while the devices train the next
chunk: one that takes longer than a chunk, about half a second, makes them wait.

A run that is resumed goes on with its built-in sinks. Your own have to be given to `rlref.resume` again. Of several
processes that train one run, the first alone writes.
"""

import contextlib
import dataclasses
import importlib.util
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from rlref import metrics
from rlref.errors import UsageError, in_a_line, nearest

if TYPE_CHECKING:
    import pandas as pd


FLUSH_SECONDS = 5.0  # sinks are flushed this often, and before every checkpoint

Metrics = dict[str, np.ndarray]  # name -> `[rows, updates]` float32


@dataclasses.dataclass(frozen=True)
class Row:
    """One of the things that train side by side: a seed, or with batched settings a seed of a setting."""

    index: int
    """its place among all rows of the run"""
    label: str
    """`seed-3`, or `setting-1-seed-3`"""
    seed: int
    setting: int | None
    """None if no setting is batched"""
    config: dict[str, Any]
    """all settings; of a batched one this row's value"""
    batched: tuple[str, ...]
    """names of the batched settings"""


class Sink(Protocol):
    """What gets a run's metrics.

    It is opened and closed once for every group of rows; groups train one after the other, and most runs have one.
    """

    def open(self, path: Path | None, rows: Sequence[Row], history: Metrics) -> None:
        """Begin with the group of `rows`.

        Args:
          path: the run's folder; None if the run is not kept.
          rows: those that the first axis of all metrics is about.
          history: every metric that will come, with what the updates before gave: `[rows, 0]` at a run's start, more
            where a run goes on from a checkpoint. Whatever this sink has of these rows beyond it must be dropped: it
            comes again.
        """

    def write(self, update: int, values: Metrics) -> None:
        """Take the metrics of one or more updates, the first of them `update`. The arrays are read-only."""

    def flush(self) -> None:
        """Bring what was written to where a killed process does not lose it: every few seconds."""

    def close(self) -> None:
        """End; also called after a method has raised."""


class TensorBoard:
    """A file of events per row in `tensorboard/`, with CleanRL's tags, fed with the last update of each chunk.

    A chunk is about half a second of training. An event takes ten times as long to write as a line of CSV, with 50
    metrics half a millisecond per row: for every update of a fast training that is too much.

    tensorboardX's SummaryWriter has a thread write them. That ends on a full disk, and the training would wait for it
    for ever; so they are written at once here.
    """

    def open(self, path: Path | None, rows: Sequence[Row], history: Metrics) -> None:
        """Begin a file of events per row, which hides what a run now resumed had written later."""
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.record_writer import RecordWriter

        assert path is not None
        self.files: list[Any] = []
        for row, env_steps in zip(rows, history["env_steps"], strict=True):
            folder = path / "tensorboard" / row.label
            folder.mkdir(parents=True, exist_ok=True)
            steps = int(env_steps[-1]) if env_steps.size else 0
            before = len(list(folder.iterdir()))
            name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{before}.{steps}"
            file = RecordWriter(str(folder / name))
            self.files.append(file)
            _write_event(file, file_version="brain.Event:2")
            if before:  # also by a run that was killed before its first checkpoint, and begins again
                _write_event(file, step=steps + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, update: int, values: Metrics) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        for i, file in enumerate(self.files):
            scalars = []
            for name, x in values.items():
                if np.isfinite(x[i, -1]):
                    tag = metrics.BY_NAME[name].tag if name in metrics.BY_NAME else f"diag/{name}"
                    scalars.append(Summary.Value(tag=tag, simple_value=x[i, -1]))
            _write_event(file, step=int(values["env_steps"][i, -1]), summary=Summary(value=scalars))

    def flush(self) -> None:
        for file in self.files:
            file.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # all of them, also where one raises
            for file in self.files:
                stack.callback(file.close)


def _write_event(file: Any, **fields: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event

    file.write(Event(wall_time=time.time(), **fields).SerializeToString())


class CSV:
    """`metrics.csv`: a line per row and update, in the order in which they came, with the columns of `Run.to_frame`.

    As RFC 4180 has it: commas, lines that end with CR LF, a header. NaN is an empty cell. Every number has the digits
    that it takes to read the same float32 again.
    """

    NAME = "metrics.csv"

    def open(self, path: Path | None, rows: Sequence[Row], history: Metrics) -> None:
        """Write the lines of `rows` anew, from `history`; those of other rows stay."""
        assert path is not None
        self.rows = rows
        file, part = path / self.NAME, path / f"{self.NAME}.part"
        with part.open("w", encoding="utf-8", newline="") as new:
            past = frame(rows, 0, history)
            header = past[:0].to_csv(index=False, lineterminator="\r\n")
            new.write(header)
            new.writelines(_lines_of_others(file, header, list(past.columns).index("seed"), rows))
            self._append(past, new)
        os.replace(part, file)
        self.file = file.open("a", encoding="utf-8", newline="")

    def write(self, update: int, values: Metrics) -> None:
        self._append(frame(self.rows, update, values), self.file)

    def _append(self, lines: "pd.DataFrame", file: IO[str]) -> None:
        lines.to_csv(file, index=False, header=False, lineterminator="\r\n")

    def flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def _lines_of_others(file: Path, header: str, at: int, rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a `metrics.csv` that are not of `rows`, without the header; none if it has another header.

    Cell `at` is the seed; the setting, if there is one, is the first. A last line that was cut off, when the process
    was killed, is left out: its row has all of its lines written anew.
    """
    if not file.exists():
        return
    own = {(str(row.seed if row.setting is None else row.setting), str(row.seed)) for row in rows}
    with file.open(encoding="utf-8", newline="") as old:
        if old.readline() != header:
            return
        for line in old:
            cells = line.split(",", at + 1)
            if line.endswith("\r\n") and (cells[0], cells[at]) not in own:
                yield line


class Parquet:
    """`metrics.parquet/`: a data set of files, with a line per row and update and the columns of `Run.to_frame`.

    `pandas.read_parquet` reads the folder whole. A Parquet file cannot be appended to, so that every flush writes one,
    named by the first of its rows and the first of its updates. NaN is null.
    """

    NAME = "metrics.parquet"

    def open(self, path: Path | None, rows: Sequence[Row], history: Metrics) -> None:
        """Write what there is of `rows` anew, as one file, from `history`."""
        assert path is not None
        self.folder, self.rows = path / self.NAME, rows
        self.pending: list[tuple[int, Metrics]] = []
        self.folder.mkdir(exist_ok=True)
        for file in self.folder.glob(f"row{rows[0].index:06d}-update*.parquet"):
            file.unlink()
        if history["env_steps"].size:
            self.write(0, history)
            self.flush()

    def write(self, update: int, values: Metrics) -> None:
        self.pending.append((update, values))

    def flush(self) -> None:
        import pandas as pd

        if not self.pending:
            return
        first, _ = self.pending[0]
        lines = pd.concat([frame(self.rows, update, values) for update, values in self.pending])
        name = f"row{self.rows[0].index:06d}-update{first:08d}.parquet"
        part = self.folder / f".{name}.part"  # readers of data sets pass over names that begin with a dot
        with part.open("wb") as file:
            lines.to_parquet(file, engine="pyarrow", index=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.folder / name)
        self.pending = []

    def close(self) -> None:
        self.flush()


def frame(rows: Sequence[Row], first_update: int, values: Metrics) -> "pd.DataFrame":
    """Metrics `[rows, updates]` as `Run.to_frame` has them: a line per row and update."""
    import pandas as pd

    updates = values["env_steps"].shape[1]
    about: dict[str, list[Any]] = {}
    if rows[0].setting is not None:
        about["setting"] = [row.setting for row in rows]
        about |= {f"config_{name}": [row.config[name] for row in rows] for name in rows[0].batched}
    about["seed"] = [row.seed for row in rows]
    columns: dict[str, np.ndarray] = {name: np.repeat(x, updates) for name, x in about.items()}
    columns["update"] = np.tile(np.arange(first_update, first_update + updates), len(rows))
    return pd.DataFrame(columns | {name: x.ravel() for name, x in values.items()})


BUILT_IN: dict[str, Callable[[], Sink]] = {"tensorboard": TensorBoard, "csv": CSV, "parquet": Parquet}
LIBRARIES = {"tensorboard": "tensorboardX", "parquet": "pyarrow"}  # what they take; rlref's extras have their names


def is_installed(name: str) -> bool:
    """Whether the library is there that a built-in sink takes."""
    return name not in LIBRARIES or importlib.util.find_spec(LIBRARIES[name]) is not None


def default(path: Path | None) -> list[str]:
    """The sinks of a run for which none were chosen: TensorBoard's, if it has a folder and tensorboardX is there."""
    return ["tensorboard"] if path is not None and is_installed("tensorboard") else []


def validated(given: Sequence[str | Sink], path: Path | None) -> list[str | Sink]:
    """What the caller chose, each once. Raises UsageError for what is no sink, or lacks its library or a folder."""
    if isinstance(given, str):
        raise UsageError(f"sinks is {given!r}; it must be a list, such as [{given!r}]")
    known, methods = ", ".join(BUILT_IN), ("open", "write", "flush", "close")
    kept: list[str | Sink] = []
    for sink in given:
        if not isinstance(sink, str):
            if lacking := [name for name in methods if not callable(getattr(sink, name, None))]:
                raise UsageError(
                    f"{sink!r} is no sink: it lacks {lacking[0]}; there are {known}, and rlref.runs.sinks.Sink"
                )
            if isinstance(sink, type):
                raise UsageError(f"{sink!r} is a class; sinks takes objects, as in {sink.__name__}()")
        elif sink not in BUILT_IN:
            raise UsageError(f"there is no sink {sink!r}; there are {known}.{nearest(sink, BUILT_IN)}")
        elif not is_installed(sink):
            raise UsageError(f"the sink {sink} takes {LIBRARIES[sink]}: pip install {LIBRARIES[sink]}")
        elif path is None:
            raise UsageError(f"the sink {sink} writes into the run's folder: give run_dir as well")
        if not any(sink is other or (isinstance(sink, str) and sink == other) for other in kept):
            kept.append(sink)
    return kept


def for_resumed_run(
    had: Sequence[str] | None, given: Sequence[str | Sink], path: Path, warn: Callable[[str], None]
) -> list[str | Sink]:
    """The sinks of a run that is resumed: the built-in ones it `had` (None: the default), and `given`.

    One that cannot go on here is warned of. Raises UsageError as `validated` does, for `given`.
    """
    given = validated(given, path)
    here = []
    for name in default(path) if had is None else had:
        if name in BUILT_IN and is_installed(name):
            here.append(name)
        else:
            why = f"which takes {LIBRARIES[name]}" if name in LIBRARIES else "which this rlref does not know"
            warn(f"{path} goes on without its sink {name}, {why}")
    return validated([*here, *given], path)


def built_in_names(chosen: Sequence[str | Sink]) -> list[str]:
    """Those of the built-in ones, for the run's folder."""
    return [sink for sink in chosen if isinstance(sink, str)]


def instantiated(chosen: Sequence[str | Sink]) -> list[Sink]:
    """The sinks themselves; a built-in one's library must be there."""
    return [BUILT_IN[sink]() if isinstance(sink, str) else sink for sink in chosen]


class Sinks:
    """The sinks of a run: one that raises is warned of, closed, and gets no more metrics."""

    def __init__(self, sinks: Sequence[Sink], path: Path | None, warn: Callable[[str], None]):
        self.sinks, self.path, self.warn = list(sinks), path, warn
        self.is_open = False
        self.flushed_at = time.monotonic()

    def open(self, rows: Sequence[Row], history: Metrics) -> None:
        """Open them for a group of rows; see `Sink.open`."""
        self.is_open = True
        for x in history.values():
            x.flags.writeable = False

        def own() -> list[Row]:
            return [dataclasses.replace(row, config=row.config.copy()) for row in rows]

        self._each("could not be opened", lambda sink: sink.open(self.path, own(), dict(history)))

    def write(self, update: int, values: Metrics) -> None:
        """Give them the metrics of a chunk, and flush them now and then."""
        for x in values.values():
            x.flags.writeable = False  # they are the run's own
        self._each(f"could not be written from update {update} on", lambda sink: sink.write(update, dict(values)))
        if time.monotonic() - self.flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._each("could not be flushed", lambda sink: sink.flush())
        self.flushed_at = time.monotonic()

    def close(self) -> None:
        """Close those that are open."""
        if self.is_open:
            self.is_open = False
            self._each("could not be closed", lambda sink: sink.close())

    def _each(self, failure: str, call: Callable[[Sink], None]) -> None:
        for sink in self.sinks.copy():
            try:
                call(sink)
            except Exception as error:  # a user's sink may raise anything
                self.sinks = [other for other in self.sinks if other is not sink]
                with contextlib.suppress(Exception):
                    sink.close()
                where = f"{self.path}: " if self.path else ""
                self.warn(f"{where}the sink {type(sink).__name__} {failure} and ends: {in_a_line(error)}")
