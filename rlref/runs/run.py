"""A run in memory: its metrics, its scores, what the health checks say, its policy; and reading one from its folder."""

import contextlib
import dataclasses
import html
import importlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlref import stats
from rlref.errors import UsageError, in_a_line
from rlref.health.engine import PRECISION, Diagnosis, diagnose, full_precision, with_setting
from rlref.health.findings import SEVERITIES
from rlref.runs import files
from rlref.runs.folder import is_held, read_about, read_summary
from rlref.runs.metric_pieces import Pieces, assembled, extent, metric_files, place_of, read_metrics

if TYPE_CHECKING:
    import pandas as pd

    from rlref.runs.trained import Trained


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

    def __repr__(self) -> str:
        """One line: its arrays would fill screens."""
        *settings, seeds, updates = next(iter(self.metrics.values())).shape if self.metrics else (len(self.seeds), 0)
        several = f"{settings[0]} settings, " if settings else ""
        about = f"{self.agent} on {self.config.get('env_id', 'an environment')}"
        rows = f"{seeds} seed{'s' * (seeds != 1)}, {updates} update{'s' * (updates != 1)}"
        return f"<Run: {about}, {several}{rows}, {self.summary.get('status', 'unknown')}>"

    def _repr_html_(self) -> str:
        """As a notebook shows it. Raises nothing: a notebook would hide it, and the run."""
        try:
            # By name, as rlref/__init__.py does: this room may not import it, and a script need not wait for it.
            return importlib.import_module("rlref.reports.card").card(self)
        except Exception as error:
            return f"<p>{html.escape(f'{self!r} cannot be shown: {in_a_line(error)}')}</p>"

    @property
    def score(self) -> str:
        """The metric that is a seed's score: `mean_policy_return` where the agent has it, else `return_mean`."""
        return "mean_policy_return" if "mean_policy_return" in self.metrics else "return_mean"

    @property
    def scores(self) -> np.ndarray:
        """Each seed's score at its last update, `[seed]`; with batched settings `[setting, seed]`.

        NaN for a seed that became non-finite and has had no score since: its earlier score would flatter it.
        """
        if self.score not in self.metrics:  # an agent of somebody's own may not have it
            return np.full(next(iter(self.metrics.values())).shape[:-1], np.nan)
        return stats.final_scores(self.metrics[self.score], self.metrics.get("nonfinite"))

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
            self.diagnosis = diagnosed(self)
        return self.diagnosis

    def policy(self, seed: int, setting: int | None = None) -> Callable[..., Any]:
        """One seed's trained policy: `(observation, key=None) -> action`, greedy, or sampled where a key is given.

        With a memory it takes and gives that as well: `(observation, memory=None, last_action=None, last_reward=None,
        key=None) -> action, memory`.
        `setting` is which one of several, the first without it.

        Raises UsageError if there is no such seed, or, of a run from a folder, what `runs.trained.of_folder` raises.
        """
        if self.trained is None:
            from rlref.runs import trained

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


def diagnosed(run: Run) -> Diagnosis:
    """Check a run; with batched settings, each setting by itself."""
    exact = run.path is None and full_precision()
    if run.path is not None:
        with contextlib.suppress(UsageError, LookupError):  # where it cannot be read, the wider thresholds do
            environment = files.read_json(run.path / "environment.json")
            exact = full_precision(environment["devices"], environment["jax_config"][PRECISION])

    def of(metrics: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Diagnosis:
        return diagnose(metrics, config, num_updates=run.num_updates, seeds=run.seeds, exact=exact)

    if not run.batched:
        return of(run.metrics, run.config)
    each = []
    for i in range(len(run.config[run.batched[0]])):
        config = run.config | {name: run.config[name][i] for name in run.batched}
        one = of({name: x[i] for name, x in run.metrics.items()}, config)
        each.append(dataclasses.replace(one, findings=[with_setting(f, i) for f in one.findings]))
    findings = sorted((f for one in each for f in one.findings), key=lambda f: SEVERITIES.index(f.worst))
    unchecked = {name: why for one in each for name, why in one.unchecked.items()}
    return Diagnosis(findings, [name for name in each[0].checked if name not in unchecked], unchecked)


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


def load(path: str | Path, *, agent: Any = None, env: Any = None, env_params: Any = None) -> Run:
    """Read a run from its folder alone; also one that was killed, up to what it had written.

    Its policy alone takes more, if they were given from Python: `agent`, `env` and `env_params` as in `rlref.train`.
    Raises UsageError if `path` is no run's folder, or is damaged. Damaged metrics are warned of, and NaN.
    """
    path = Path(path).absolute()  # its policy may be asked for from another folder
    about = read_about(path)
    pieces: Pieces = {}
    for row in sorted({row for row, _ in map(place_of, (path / "metrics").glob("row*-update*.npz"))}):
        for update, file in metric_files(path, row):
            try:
                pieces[row, update] = read_metrics(file)
            except UsageError as error:
                warnings.warn(f"{error}; its updates are NaN until the run is resumed", stacklevel=2)
    if not pieces:
        raise UsageError(f"{path} holds no metrics yet: the run ended before its first update did")
    rows, updates = extent(pieces)
    num_settings, seeds = about["num_settings"], about["seeds"]
    shape = (len(seeds), updates) if num_settings is None else (num_settings, len(seeds), updates)
    if rows > np.prod(shape[:-1]):
        raise UsageError(f"{path} holds metrics of {rows} rows, more than its {np.prod(shape[:-1])} seeds and settings")
    run = Run(
        about["agent"],
        about["config"],
        seeds,
        assembled(pieces, shape),
        {},
        about["batched"],
        about["num_updates"],
        path,
    )
    without_summary = "being trained" if is_held(path / "lock") else "killed"
    run.summary = {"status": without_summary, **(read_summary(path) or {}), **summarise(run)}
    run.given = {"agent": agent, "env": env, "env_params": env_params}
    return run
