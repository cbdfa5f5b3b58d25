"""Running a run again from its own folder, and comparing all metrics bit for bit.

Rahtz, "Lessons Learned Reproducing a Deep RL Paper" (2018): archive every run with its code and command, so that any
result can be made again.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from rlref.errors import UsageError
from rlref.runs import files, provenance
from rlref.runs.display import Display, default
from rlref.runs.folder import read_about
from rlref.runs.job import job_of_folder
from rlref.runs.plan import job_bytes, make_plan
from rlref.runs.run import Run, load
from rlref.runs.training import run_job

NOT_COMPARED = ("steps_per_second",)  # time, not training


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first update at which the metrics part."""

    update: int
    seed: int
    setting: int | None
    metric: str
    then: float
    now: float
    metrics: list[str]
    """all that differ at this update"""


@dataclasses.dataclass(frozen=True)
class Report:
    """How a run compares with itself."""

    updates: int
    """updates compared"""
    metrics: int
    """metrics compared"""
    difference: Difference | None
    """None if all are the same, bit for bit"""
    changed: list[str]
    """what is not as it was: versions, devices"""

    def text(self) -> str:
        """The outcome in a sentence or two."""
        compared = f"{self.updates} updates of {self.metrics} metrics"
        changed = f" Not as it was: {'; '.join(self.changed)}." if self.changed else ""
        if self.difference is None:
            return f"the same: {compared}, bit for bit.{changed}"
        d = self.difference
        where = f"seed {d.seed}" if d.setting is None else f"setting {d.setting}, seed {d.seed}"
        others = f", and {len(d.metrics) - 1} other metrics" if len(d.metrics) > 1 else ""
        return (
            f"the runs part at update {d.update} of {compared}: {d.metric} was {d.then:.9g} and is {d.now:.9g} "
            f"({where}){others}.{changed or ' Versions and devices are as they were.'}"
        )


def reproduce(
    path: Path,
    updates: int | None = None,
    agent: Any = None,
    env: Any = None,
    env_params: Any = None,
    display: Display | None = None,
) -> Report:
    """Run a run again, in memory, from its folder: its settings, its agent's file; and compare.

    Args:
      path: the run's folder; nothing is written to it.
      updates: how many to compare, from the first; all that it has without.
      agent, env, env_params: as in `rlref.resume`.
      display: where to show progress.

    Raises UsageError as `rlref.load` and `rlref.resume` do.
    """
    display = display or default()
    then = load(path)
    about = read_about(path, strict=True)
    job = job_of_folder(path, agent, env, env_params)
    count = then.metrics["env_steps"].shape[-1]
    if updates is not None and not 1 <= updates <= count:
        raise UsageError(f"--updates is {updates}; the run has {count}")
    count = updates or count
    began, here = files.read_json(path / "environment.json"), provenance.environment(job.source)
    # Where it was resumed elsewhere, its numbers are of both places.
    places = [began, *began.get("resumed", [])]
    changed = [*dict.fromkeys(text for there in places for text in provenance.changes(there, here))]
    plan = make_plan(job.num_rows, job_bytes(job, False), None, display, about["rows_per_group"])
    now = run_job(job, plan, None, None, 0, display, limit=count)
    if now.summary["status"] == "interrupted":
        raise KeyboardInterrupt
    shared = [name for name in then.metrics if name in now.metrics and name not in NOT_COMPARED]
    pairs = {name: (then.metrics[name][..., :count], now.metrics[name][..., :count]) for name in shared}
    changed += [
        f"the metric {name} is {'gone' if name in then.metrics else 'new'}"
        for name in sorted(then.metrics.keys() ^ now.metrics.keys())
    ]
    return Report(count, len(shared), first_difference(pairs, then), changed)


def first_difference(pairs: dict[str, tuple[np.ndarray, np.ndarray]], run: Run) -> Difference | None:
    """The first update at which any pair of metrics `[..., seed, update]` differs in a bit, where `run` has any."""
    reached = np.isfinite(run.metrics["env_steps"])

    def differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        both_nan = np.isnan(a) & np.isnan(b)
        return (a.view(np.int32) != b.view(np.int32)) & ~both_nan & reached[..., : a.shape[-1]]

    apart = {name: differ(a, b) for name, (a, b) in pairs.items()}
    of_update = np.stack([x.reshape(-1, x.shape[-1]).any(0) for x in apart.values()])  # [metric, update]
    if not of_update.any():
        return None
    update = int(of_update.any(0).argmax())
    names = [name for name, differs in zip(apart, of_update[:, update], strict=True) if differs]
    row = tuple(int(i) for i in np.argwhere(apart[names[0]][..., update])[0])
    then, now = (float(x[(*row, update)]) for x in pairs[names[0]])
    return Difference(update, run.seeds[row[-1]], row[0] if len(row) == 2 else None, names[0], then, now, names)
