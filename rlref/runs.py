"""A run: its metrics in memory, and its folder on disk.

    config.json        settings, options, and the command        environment.json   versions, devices, git commit, date
    metrics/*.npz      chunks of metrics, `[row, update]`         summary.json       scores and how the run ended
    source/            the agent's file as run, uncommitted diff  tensorboard/       events, if tensorboardX is there
    checkpoints/       the whole state: see rlref.checkpoint      metrics.csv, metrics.parquet/   if asked for

Every file is written under another name and then moved, so that a killed run leaves a folder that loads.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

import rlref
from rlref import stats
from rlref.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from rlref.trained import Trained
    from rlref.verdicts import Diagnosis

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

Pieces = dict[tuple[int, int], dict[str, np.ndarray]]  # (first row, first update) -> metrics [rows, updates]
JAX_CONFIG = ("jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")  # change numbers
PACKAGES = ("jax", "jaxlib", "flax", "optax", "gymnax", "chex", "orbax-checkpoint", "numpy", "scipy")


@dataclasses.dataclass
class Run:
    """The outcome of a training. Arrays are `[seed, update]`; with batched settings `[setting, seed, update]`."""

    agent: str
    config: dict[str, Any]
    """settings; a batched one is a list with a value per setting"""
    seeds: list[int]
    metrics: dict[str, np.ndarray]
    summary: dict[str, Any]
    batched: list[str] = dataclasses.field(default_factory=list)
    """names of the settings that hold a value per setting"""
    num_updates: int = 0
    """of the whole training; a run that was stopped has metrics of fewer"""
    path: Path | None = None
    """the run's folder; None if it was not kept"""
    trained: "Trained | None" = dataclasses.field(default=None, repr=False)
    """what acting takes, of the run just trained; after `load`, read from the folder when it is first asked for"""
    given: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """what its folder cannot name: `agent`, `env` and `env_params` of `load`"""
    setting: int | None = None
    """which setting of the run in `path` this is, if it is one of several"""
    diagnosis: "Diagnosis | None" = dataclasses.field(default=None, repr=False, compare=False)
    """what `diagnose` gave"""

    @property
    def score(self) -> str:
        """The metric that is a seed's score: `mean_policy_return` where the agent has it, else `return_mean`."""
        return "mean_policy_return" if "mean_policy_return" in self.metrics else "return_mean"

    @property
    def scores(self) -> np.ndarray:
        """Each seed's score at its last update, `[seed]`; with batched settings `[setting, seed]`."""
        if self.score not in self.metrics:  # an agent of somebody's own may not have it
            return np.full(next(iter(self.metrics.values())).shape[:-1], np.nan)
        return last(self.metrics[self.score])

    def of_setting(self, setting: int) -> "Run":
        """One setting of a run with batched settings, as a run by itself. Raises UsageError if there is none."""
        count = len(self.config[self.batched[0]]) if self.batched else 0
        if not 0 <= setting < count:
            there = f"it has 0 to {count - 1}" if count else "its settings are not batched"
            raise UsageError(f"{self.path or 'the run'} has no setting {setting}; {there}")
        config = self.config | {name: self.config[name][setting] for name in self.batched}
        metrics = {name: x[setting] for name, x in self.metrics.items()}
        one = dataclasses.replace(self, config=config, metrics=metrics, batched=[], setting=setting, diagnosis=None)
        one.summary = {"status": self.summary["status"], **summarise(one)}
        return one

    def diagnose(self) -> "Diagnosis":
        """What all health checks say of it: `rlref diagnose` from Python. They are made once."""
        if self.diagnosis is None:
            from rlref import verdicts

            self.diagnosis = verdicts.of_run(self)
        return self.diagnosis

    def policy(self, seed: int, setting: int | None = None) -> Callable[..., Any]:
        """One seed's trained policy: `(observation, key=None) -> action`, greedy, or sampled where a key is given.

        `setting` is which one of several, the first without it.

        Raises UsageError if there is no such seed, or, of a run from a folder, what `rlref.trained.of_folder` raises.
        """
        if self.trained is None:
            from rlref import trained

            assert self.path is not None
            self.trained = trained.of_folder(self.path, **self.given)
        setting = self.setting if setting is None else setting
        return self.trained.policy(self.trained.row(seed, setting or 0))

    def to_frame(self) -> "pd.DataFrame":
        """One line per seed and update (and setting), with a column per metric."""
        import pandas as pd

        shape = next(iter(self.metrics.values())).shape
        index = np.indices(shape)
        columns: dict[str, Any] = {}
        if len(shape) == 3:
            columns["setting"] = index[0].ravel()
            for name in self.batched:
                columns[f"config_{name}"] = np.asarray(self.config[name])[columns["setting"]]
        columns |= {"seed": np.asarray(self.seeds)[index[-2].ravel()], "update": index[-1].ravel()}
        frame = pd.DataFrame(columns | {name: x.ravel() for name, x in self.metrics.items()})
        # Rows that an interrupted run never reached are no observations.
        return frame[np.isfinite(frame["env_steps"])].reset_index(drop=True)


def last(x: np.ndarray) -> np.ndarray:
    """The last update's values along the last axis; for a row that stopped early, those of its own last update."""
    reached = np.isfinite(x)
    index = np.where(reached.any(-1), x.shape[-1] - 1 - np.argmax(reached[..., ::-1], axis=-1), 0)
    return np.take_along_axis(x, index[..., None], axis=-1)[..., 0]


def summarise(run: Run) -> dict[str, Any]:
    """What a run came to: score per seed, IQM and its interval, seeds with non-finite numbers and since when."""
    scores = run.scores
    settings = scores.reshape(-1, scores.shape[-1])
    iqms, intervals = [stats.iqm(x) for x in settings], [list(stats.iqm_interval(x)) for x in settings]
    first: dict[tuple[int, ...], int] = {}
    for *row, update in np.argwhere(run.metrics["nonfinite"] > 0).tolist() if "nonfinite" in run.metrics else []:
        first.setdefault(tuple(row), update)
    return {
        "score": run.score,
        "scores": scores.tolist(),
        "iqm": iqms if run.batched else iqms[0],  # over seeds; a list if settings are batched
        "iqm_interval_95": intervals if run.batched else intervals[0],
        "min": float(np.nanmin(scores)) if np.isfinite(scores).any() else float("nan"),
        "max": float(np.nanmax(scores)) if np.isfinite(scores).any() else float("nan"),
        "nonfinite": [
            {"seed": run.seeds[row[-1]], "update": update} | ({"setting": row[0]} if len(row) == 2 else {})
            for row, update in first.items()
        ],
    }


def write(path: Path, save: Callable[[IO[bytes]], Any]) -> None:
    """Write a file atomically: under another name, onto the disk, and then moved."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        save(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def save_arrays(path: Path, values: dict[str, np.ndarray]) -> None:
    """Write arrays atomically, in NumPy's format."""
    write(path, lambda file: np.savez(file, **values))  # type: ignore[arg-type]


def json_text(value: Any) -> str:
    """`value` as JSON; NaN and infinities become null, which JSON has."""

    def clean(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: clean(v) for k, v in x.items()}
        if isinstance(x, list | tuple):
            return [clean(v) for v in x]
        return None if isinstance(x, float) and not np.isfinite(x) else x

    return json.dumps(clean(value), indent=1, allow_nan=False)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` atomically, with its CRC-32 as a last entry."""
    value = json.loads(json_text(value))
    text = json_text(value | {"crc32": zlib.crc32(json_text(value).encode())})
    write(path, lambda file: file.write(f"{text}\n".encode()))


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. Raises UsageError where it is missing or damaged."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
        crc32 = value.pop("crc32")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({type(error).__name__}: {error})") from error
    if crc32 != zlib.crc32(json_text(value).encode()):
        raise UsageError(f"{path} is damaged, or was changed by hand")
    return value


def in_json(x: Any) -> Any:
    """Settings for JSON, which has no infinity: as the word that float() reads."""
    if isinstance(x, list):
        return [in_json(y) for y in x]
    if isinstance(x, dict):
        return {name: in_json(y) for name, y in x.items()}
    return str(x) if isinstance(x, float) and not np.isfinite(x) else x


def out_of_json(x: Any) -> Any:
    """The settings that `in_json` wrote."""
    if isinstance(x, list):
        return [out_of_json(y) for y in x]
    if isinstance(x, dict):
        return {name: out_of_json(y) for name, y in x.items()}
    return float(x) if x in ("inf", "-inf", "nan") else x


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a file system's refusal into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write the run to {path}: {error.strerror}") from error


class Folder:
    """The folder of a run that is being trained, by this process alone."""

    def __init__(self, path: Path):
        """Take hold of a run's folder. Raises UsageError while another process trains it."""
        self.path = path
        self.written: set[tuple[int, int]] = set()
        self.written_at = time.monotonic()
        with writing(path):
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
    def create(cls, path: Path, source: Path | None, code: bytes, config: dict[str, Any]) -> "Folder":
        """Make `path`, which must not exist yet, and write everything that is known before training.

        `source` is where the agent's file is, `code` what was in it. All at once, under another name first: a kill
        leaves at most a hidden folder `.NAME-xxxxxxxx`, which may be deleted, and nothing in the run's way.
        """
        made = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            with writing(path):
                (made / "metrics").mkdir(parents=True)
                (made / "source").mkdir()
                if source:
                    (made / "source" / source.name).write_bytes(code)
                    if diff := _git(source.parent, "diff", "HEAD"):
                        (made / "source" / "uncommitted.diff").write_text(diff)
                write_json(made / "environment.json", environment(source))
                write_json(made / "source" / "config.json", config)
                write_json(made / "config.json", config)
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
            history = read_json(self.path / "environment.json")
        except UsageError as error:
            history = {"lost": str(error)}
        resumed = [*history.get("resumed", []), {"command": command, **environment(source)}]
        with writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
            write_json(self.path / "environment.json", history | {"resumed": resumed})
            write_json(self.path / "source" / "config.json", config)
            write_json(self.path / "config.json", config)

    def cut(self, first_row: int, pieces: Pieces) -> bool:
        """Drop all metrics of the rows from `first_row` on but `pieces`, as `pieces_until` gives them.

        The last of `pieces` may have been cut out of a longer file. Returns whether a whole file was dropped.
        """
        starts = [start for _, start in pieces]
        dropped = False
        with writing(self.path):
            for start, file in reversed(metric_files(self.path, first_row)):
                if start not in starts:
                    file.unlink()
                    dropped = True
                elif start == max(starts):
                    save_arrays(file, pieces[first_row, start])
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
            shape = end_of(new)
            values = join(
                {(0, update - start): piece for (_, update), piece in new.items()}, (shape[0] - row, shape[1] - start)
            )
            path = self.path / "metrics" / f"row{row:06d}-update{start:08d}.npz"
            save_arrays(path, values)
            self.written |= new.keys()
        self.written_at = time.monotonic()

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)


def end_of(pieces: Pieces) -> tuple[int, int]:
    """How many rows and updates `pieces` reach to."""
    ends = [np.add(at, next(iter(piece.values())).shape) for at, piece in pieces.items()]
    rows, updates = np.max(ends, axis=0).tolist()
    return rows, updates


def join(pieces: Pieces, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """All `pieces` as arrays of `shape`: its last axis is updates, the others rows. NaN where there is no piece."""
    rows, updates = int(np.prod(shape[:-1])), shape[-1]
    names = dict.fromkeys(name for piece in pieces.values() for name in piece)
    joined = {name: np.full((rows, updates), np.nan, np.float32) for name in names}
    for (row, update), piece in pieces.items():
        for name, x in piece.items():
            joined[name][row : row + x.shape[0], update : update + x.shape[1]] = x
    return {name: x.reshape(shape) for name, x in joined.items()}


def _place(file: Path) -> tuple[int, int]:
    """First row and first update of a file of metrics, from its name."""
    row, update = file.stem.removeprefix("row").split("-update")
    try:
        return int(row), int(update)
    except ValueError:
        raise UsageError(f"{file} is no file of metrics: they are named row000000-update00000000.npz") from None


def metric_files(path: Path, first_row: int) -> list[tuple[int, Path]]:
    """The files of metrics of the rows from `first_row` on, with their first updates, in order."""
    return sorted((_place(file)[1], file) for file in (path / "metrics").glob(f"row{first_row:06d}-update*.npz"))


def pieces_until(path: Path, first_row: int, update: int) -> Pieces:
    """The metrics of the first `update` updates of the rows from `first_row` on, from a run's folder.

    Raises UsageError, with the reason, where one is missing or damaged.
    """
    pieces: Pieces = {}
    reached = 0
    for start, file in metric_files(path, first_row):
        if start != reached or reached == update:
            break
        piece = read_metrics(file)
        count = min(update - start, next(iter(piece.values())).shape[1])
        pieces[first_row, start] = {name: np.ascontiguousarray(x[:, :count]) for name, x in piece.items()}
        reached += count
    if reached < update:
        raise UsageError(f"metrics of the updates from {reached} on are missing")
    return pieces


def read_metrics(file: Path) -> dict[str, np.ndarray]:
    """Metrics `[rows, updates]` of one file. Raises UsageError where it is damaged: a zip file keeps CRCs."""
    try:
        with file.open("rb") as opened, np.load(opened) as data:  # opened here: np.load leaks a damaged one
            piece = dict(data)
        if len({x.shape for x in piece.values()}) != 1 or next(iter(piece.values())).ndim != 2:
            raise ValueError("it does not hold arrays [rows, updates] of one shape")
        return piece
    except Exception as error:  # zipfile and NumPy raise a dozen kinds of errors on damaged files
        raise UsageError(f"{file} is damaged ({type(error).__name__}: {error})") from error


def load(path: str | Path, *, agent: Any = None, env: Any = None, env_params: Any = None) -> Run:
    """Read a run from its folder alone; also one that was killed, up to what it had written.

    Its policy alone takes more, if they were given from Python: `agent`, `env` and `env_params` as in `rlref.train`.
    Raises UsageError if `path` is no run's folder, or is damaged. Damaged metrics are warned of, and NaN.
    """
    path = Path(path).absolute()  # its policy may be asked for from another folder
    about = read_about(path)
    pieces: Pieces = {}
    for row in sorted({row for row, _ in map(_place, (path / "metrics").glob("row*-update*.npz"))}):
        for update, file in metric_files(path, row):
            try:
                pieces[row, update] = read_metrics(file)
            except UsageError as error:
                warnings.warn(f"{error}; its updates are NaN until the run is resumed", stacklevel=2)
    if not pieces:
        raise UsageError(f"{path} holds no metrics yet: the run ended before its first update did")
    rows, updates = end_of(pieces)
    num_settings, seeds = about["num_settings"], about["seeds"]
    shape = (len(seeds), updates) if num_settings is None else (num_settings, len(seeds), updates)
    if rows > np.prod(shape[:-1]):
        raise UsageError(f"{path} holds metrics of {rows} rows, more than its {np.prod(shape[:-1])} seeds and settings")
    run = Run(
        about["agent"], about["config"], seeds, join(pieces, shape), {}, about["batched"], about["num_updates"], path
    )
    run.summary = {"status": "killed", **(read_summary(path) or {}), **summarise(run)}
    run.given = {"agent": agent, "env": env, "env_params": env_params}
    return run


def read_about(path: Path, strict: bool = False) -> dict[str, Any]:
    """What a run's config.json says; if it is damaged, its copy in source/ with a warning.

    Raises UsageError if there is no such run or both are damaged; with `strict`, if either is.
    """
    if not (path / "config.json").is_file() and not (path / "source" / "config.json").is_file():
        raise UsageError(f"{path} is no run's folder: there is no config.json in it")
    found, problems = [], []
    for file in (path / "config.json", path / "source" / "config.json"):
        try:
            found.append(read_json(file))
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
        return read_json(path / "summary.json")
    except UsageError as error:
        warnings.warn(f"{error}; how the run ended is not known", stacklevel=3)
        return None


def changes(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Versions, devices and settings of jax that differ between two of what `environment` gives: other last bits."""
    one, other = (
        {**x["versions"], **x["jax_config"], **{name: x[name] for name in ("python", "devices", "xla_flags")}}
        for x in (then, now)
    )
    return [f"{name} was {one.get(name)} and is {x}" for name, x in other.items() if one.get(name) != x]


def environment(source: Path | None) -> dict[str, Any]:
    """Versions, devices and the state of the source: what it takes to run the same again."""
    import jax

    versions: dict[str, str | None] = {"rlref": rlref.__version__}  # of the code that runs, not as it was installed
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "versions": versions,
        "platform": platform.platform(),
        "devices": [device.device_kind for device in jax.devices()],
        "jax_config": {name: getattr(jax.config, name, None) for name in JAX_CONFIG},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "git_commit": (_git(source.parent, "rev-parse", "HEAD").strip() if source else "") or None,
    }


def _git(folder: Path, *arguments: str) -> str:
    """What git prints for `folder`; '' where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
