"""A run: its metrics in memory, and its folder on disk.

    config.json        settings, options, and the command        environment.json   versions, devices, git commit, date
    metrics/*.npz      chunks of metrics, `[row, update]`         summary.json       scores and how the run ended
    source/            the agent's file as run, uncommitted diff  tensorboard/       events, if tensorboardX is there

Every file is written under another name and then moved, so that a killed run leaves a folder that loads.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlref import metrics as metric_table
from rlref import stats
from rlref.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

Pieces = dict[tuple[int, int], dict[str, np.ndarray]]  # (first row, first update) -> metrics [rows, updates]
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
    path: Path | None = None
    """the run's folder; None if it was not kept"""
    act: Callable[..., Any] | None = dataclasses.field(default=None, repr=False)
    """(row, observation, key or None) -> action, of the run just trained; None after `load`"""

    @property
    def score(self) -> str:
        """The metric that is a seed's score: `mean_policy_return` where the agent has it, else `return_mean`."""
        return "mean_policy_return" if "mean_policy_return" in self.metrics else "return_mean"

    @property
    def scores(self) -> np.ndarray:
        """Each seed's score at its last update, `[seed]`; with batched settings `[setting, seed]`."""
        return last(self.metrics[self.score])

    def policy(self, seed: int, setting: int = 0) -> Callable[..., Any]:
        """One seed's trained policy: `(observation, key=None) -> action`, greedy, or sampled where a key is given."""
        if self.act is None:
            raise RuntimeError(
                "this run was loaded from its folder, which holds no parameters; train again to get its policy"
            )
        if seed not in self.seeds:
            raise UsageError(f"the run has no seed {seed}; it has {self.seeds[0]} to {self.seeds[-1]}")
        num_settings = next(iter(self.metrics.values())).shape[0] if self.batched else 1
        if not 0 <= setting < num_settings:
            raise UsageError(f"the run has no setting {setting}; it has 0 to {num_settings - 1}")
        act, row = self.act, setting * len(self.seeds) + self.seeds.index(seed)
        return lambda obs, key=None: act(row, obs, key)

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


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically; NaN and infinities become null, which JSON has."""

    def clean(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: clean(v) for k, v in x.items()}
        if isinstance(x, list | tuple):
            return [clean(v) for v in x]
        return None if isinstance(x, float) and not np.isfinite(x) else x

    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(clean(value), indent=1, allow_nan=False) + "\n")
    os.replace(part, path)


class Folder:
    """The folder of a run that is being trained."""

    def __init__(self, path: Path, source: Path | None, config: dict[str, Any]):
        """Make `path`, which must not exist yet, and write everything that is known before training."""
        if path.exists():
            raise UsageError(f"{path} exists already and is never overwritten; give another --run-dir")
        try:
            (path / "metrics").mkdir(parents=True)
            (path / "source").mkdir()
            write_json(path / "config.json", config)
            write_json(path / "environment.json", environment(source))
            if source:
                shutil.copy(source, path / "source" / source.name)
                if diff := _git(source.parent, "diff", "HEAD"):
                    (path / "source" / "uncommitted.diff").write_text(diff)
        except OSError as error:
            raise UsageError(f"cannot write the run to {path}: {error.strerror}; give another --run-dir") from error
        self.path = path
        self.written: set[tuple[int, int]] = set()
        self.written_at = time.monotonic()

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
            part = path.with_name(path.name + ".part")
            with part.open("wb") as file:
                np.savez(file, **values)  # type: ignore[arg-type]
            os.replace(part, path)
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


def load(path: str | Path) -> Run:
    """Read a run from its folder alone; also one that was killed, up to what it had written.

    Raises UsageError if `path` is no run's folder, or is damaged.
    """
    path = Path(path)
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is no run's folder: there is no config.json in it")
    try:
        return _load(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _load(path: Path) -> Run:
    config = json.loads((path / "config.json").read_text())
    pieces: Pieces = {}
    for file in sorted((path / "metrics").glob("row*-update*.npz")):
        row, update = (int(part) for part in file.stem.removeprefix("row").split("-update"))
        try:
            with file.open("rb") as opened, np.load(opened) as data:  # opened here: np.load leaks a damaged one
                pieces[row, update] = dict(data)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"{file} is damaged ({error}); without it the rest of the run loads") from error
    if not pieces:
        raise UsageError(f"{path} holds no metrics yet: the run ended before its first update did")
    _, updates = end_of(pieces)
    num_settings, seeds = config["num_settings"], config["seeds"]
    shape = (len(seeds), updates) if num_settings is None else (num_settings, len(seeds), updates)
    run = Run(config["agent"], config["config"], seeds, join(pieces, shape), {}, config["batched"], path)
    summary = path / "summary.json"
    run.summary = json.loads(summary.read_text()) if summary.exists() else {"status": "killed", **summarise(run)}
    return run


def environment(source: Path | None) -> dict[str, Any]:
    """Versions, devices and the state of the source: what it takes to run the same again."""
    import jax

    versions: dict[str, str | None] = {}
    for package in ("rlref", *PACKAGES):
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
        "default_matmul_precision": getattr(jax.config, "jax_default_matmul_precision", None),
        "git_commit": (_git(source.parent, "rev-parse", "HEAD").strip() if source else "") or None,
    }


def _git(folder: Path, *arguments: str) -> str:
    """What git prints for `folder`; '' where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


class TensorBoard:
    """One writer per row, fed with the last update of each chunk; does nothing where tensorboardX is not installed."""

    def __init__(self, path: Path, names: list[str]):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            self.writers = []
            return
        self.writers = [SummaryWriter(str(path / "tensorboard" / name)) for name in names]

    def write(self, row: int, values: dict[str, np.ndarray]) -> None:
        """Write the last update of metrics `[rows, updates]` that begin at `row`."""
        for i, writer in enumerate(self.writers[row : row + len(values["env_steps"])]):
            for name, x in values.items():
                if np.isfinite(x[i, -1]):
                    tag = metric_table.BY_NAME[name].tag if name in metric_table.BY_NAME else f"diag/{name}"
                    writer.add_scalar(tag, x[i, -1], int(values["env_steps"][i, -1]))

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
