"""The folder of a run on disk.

    config.json        settings, options, and the command        environment.json   versions, devices, git commit, date
    metrics/*.npz      chunks of metrics, `[row, update]`         summary.json       scores and how the run ended
    source/            the agent's file as run, uncommitted diff  tensorboard/       events, if tensorboardX is there
    checkpoints/       the whole state: see checkpoint.py         metrics.csv, metrics.parquet/   if asked for

Every file is written under another name and then moved, so that a killed run leaves a folder that loads.
"""

import datetime
import json
import secrets
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

from rlref.errors import UsageError
from rlref.runs import files, provenance
from rlref.runs.metric_pieces import Pieces, assembled, extent, metric_files
from rlref.settings import out_of_json

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]


class Folder:
    """The folder of a run that is being trained, by this process alone."""

    def __init__(self, path: Path):
        """Take hold of a run's folder. Raises UsageError while another process trains it."""
        self.path = path
        self.written: set[tuple[int, int]] = set()
        self.written_at = time.monotonic()
        with files.writing(path):
            self.lock = (path / "lock").open("w")  # the system lets go of it when this process ends, however it does
        if fcntl:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.lock.close()
                raise UsageError(f"{path} is being trained by another process; wait for it, or stop it") from None
            except OSError:  # a file system without locks
                pass

    @classmethod
    def create(cls, path: Path, source: Path | None, code: dict[str, bytes], config: dict[str, Any]) -> "Folder":
        """Make `path`, which must not exist yet, and write everything that is known before training.

        `source` is where the agent's file is, `code` what was in it and in modules beside it (`sources.code_of`).
        All at once, under another name first: a kill leaves at most a hidden folder `.NAME-xxxxxxxx`, which may be
        deleted, and nothing in the run's way.
        """
        made = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            with files.writing(path):
                (made / "metrics").mkdir(parents=True)
                (made / "source").mkdir()
                if source:
                    for name, x in code.items():
                        (made / "source" / name).parent.mkdir(parents=True, exist_ok=True)
                        (made / "source" / name).write_bytes(x)
                    if diff := provenance.git(source.parent, "diff", "HEAD"):
                        (made / "source" / "uncommitted.diff").write_bytes(diff)
                files.write_json(made / "environment.json", provenance.environment(source))
                write_config(made, config)
                if path.exists():
                    raise UsageError(f"{path} exists already and is never overwritten; give another --run-dir")
                made.rename(path)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return cls(path)

    def close(self) -> None:
        self.lock.close()

    def reopen(self, config: dict[str, Any], source: Path | None, command: list[str]) -> None:
        """Note that the run goes on, by which command and where."""
        try:
            history = files.read_json(self.path / "environment.json")
        except UsageError as error:
            history = {"lost": str(error)}
        resumed = [*history.get("resumed", []), {"command": command, **provenance.environment(source)}]
        with files.writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
            files.write_json(self.path / "environment.json", history | {"resumed": resumed})
            write_config(self.path, config)

    def amend(self, **changed: Any) -> None:
        """Change what the run's config.json and its copy say."""
        config = files.read_json(self.path / "config.json") | changed
        with files.writing(self.path):
            write_config(self.path, config)

    def cut(self, first_row: int, pieces: Pieces) -> bool:
        """Drop all metrics of the rows from `first_row` on but `pieces`, as `pieces_until` gives them.

        The last of `pieces` may have been cut out of a longer file. Returns whether a whole file was dropped.
        """
        starts = [start for _, start in pieces]
        dropped = False
        with files.writing(self.path):
            for start, file in reversed(metric_files(self.path, first_row)):
                if start not in starts:
                    file.unlink()
                    dropped = True
                elif start == max(starts):
                    files.save_arrays(file, pieces[first_row, start])
        self.written |= pieces.keys()
        return dropped

    def write_metrics(self, pieces: Pieces) -> None:
        """Write those of `pieces` that are not on disk yet, in one file per group of rows."""
        for row in sorted({row for row, _ in pieces.keys() - self.written}):
            new = {
                (r, update): piece
                for (r, update), piece in pieces.items()
                if r == row and (r, update) not in self.written
            }
            start = min(update for _, update in new)
            shape = extent(new)
            values = assembled(
                {(0, update - start): piece for (_, update), piece in new.items()}, (shape[0] - row, shape[1] - start)
            )
            path = self.path / "metrics" / f"row{row:06d}-update{start:08d}.npz"
            files.save_arrays(path, values)
            self.written |= new.keys()
        self.written_at = time.monotonic()

    def write_summary(self, summary: dict[str, Any]) -> None:
        files.write_json(self.path / "summary.json", summary)


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Write a run's config.json, after the copy that is read in its place if it is damaged."""
    files.write_json(path / "source" / "config.json", config)
    files.write_json(path / "config.json", config)


def is_held(lock: Path) -> bool:
    """Whether a living process holds a run's lock: the one that trains it."""
    if not fcntl:
        return False
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or the file system has none
        return False
    return False


def new_folder(*names: str) -> Path:
    """A folder under runs/ that nothing else has, with these names and the time in its own."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / "-".join((*names, stamp)).replace(":", "-")


def read_about(path: Path, strict: bool = False) -> dict[str, Any]:
    """What a run's config.json says; if it is damaged, its copy in source/ with a warning.

    Raises UsageError if there is no such run or both are damaged; with `strict`, if either is.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if not (path / "config.json").is_file() and not (path / "source" / "config.json").is_file():
        raise UsageError(f"{path} is no run's folder: there is no config.json in it")
    found, problems = [], []
    for file in (path / "config.json", path / "source" / "config.json"):
        try:
            found.append(files.read_json(file))
        except UsageError as error:
            problems.append(str(error))
    if not found or (strict and problems):
        copy = (
            f"; the other of config.json and source/config.json is whole: copy it over{_changed(path)}" if found else ""
        )
        raise UsageError("; ".join(problems) + copy)
    if problems:
        warnings.warn(f"{problems[0]}; its copy is read in its place{_changed(path)}", stacklevel=3)
    about = found[0]
    for name in ("config", "env_params_values"):
        about[name] = out_of_json(about[name])
    return about


def _changed(path: Path) -> str:
    """The settings that config.json and its copy do not agree on, as far as both can be read."""
    try:
        one, other = (
            json.loads(file.read_text())["config"] for file in (path / "config.json", path / "source/config.json")
        )
        differ = [
            f"{name} is {one.get(name)} in the one, {x} in the other" for name, x in other.items() if one.get(name) != x
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    return "".join(f"; {text}" for text in differ)


def read_summary(path: Path) -> dict[str, Any] | None:
    """What a run's summary.json says; None if there is none yet, or, with a warning, if it is damaged."""
    if not (path / "summary.json").exists():
        return None
    try:
        return files.read_json(path / "summary.json")
    except UsageError as error:
        warnings.warn(f"{error}; how the run ended is not known", stacklevel=3)
        return None
