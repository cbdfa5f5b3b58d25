"""Random search over settings, which ones matter, and whether the best can be trusted.

    found = sweep.sweep("ppo", ppo.Config(total_timesteps=100_000), num_settings=256, folder=Path("runs/search"))
    found.best                                              or: rlref sweep ppo --total-timesteps 100000

Settings are drawn uniformly, each on its own scale, and a regression then tells which of them mattered (Bergstra &
Bengio 2012, "Random Search for Hyper-Parameter Optimization"; Schulman 2016, "Nuts and Bolts"). The best one is chosen
by its score on one half of the seeds and reported by its score on the other, as the best of many is partly lucky. Then
it is trained again on fresh seeds, together with the settings that the search began from, and with copies of itself in
which one setting is moved a little: if that breaks it, it is too sensitive to be trusted.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlref import stats
from rlref.contract import load_agent, name_of
from rlref.envs.ids import resolved
from rlref.errors import UsageError
from rlref.reports import compare, reference
from rlref.reports.comparison_result import Comparison
from rlref.reports.methods import Method
from rlref.reports.tables import Table, comparison_tables, comparison_to_json, with_interval
from rlref.runs import files
from rlref.runs.display import Display
from rlref.runs.run import Run
from rlref.search import importance, variants
from rlref.search.space import Range, Space, check_space, draw
from rlref.settings import settings_of

Array = np.ndarray
SMALL = 0.1  # a small change moves a setting by this share of its range, on its scale
BROKEN = 0.5  # a small change breaks the best setting if it costs this share of its gain over the random policy
TOP = 0.1  # the best region holds this share of the settings tried, and five at least


@dataclasses.dataclass(frozen=True)
class Trial:
    """One setting of the search. A seed that failed counts as the lowest score of the whole search."""

    number: int
    settings: dict[str, Any]
    """what was drawn; the others are the base Config's"""
    scores: tuple[float, ...]
    """of each seed"""
    chosen_by: float
    """mean score of the first half of the seeds, by which the best is chosen"""
    reported: float
    """mean score of the other half, which had no part in the choice"""
    area: float
    """mean score over training of the first half of the seeds, for breaking ties"""
    failed: int
    """seeds without a score: they never finished an episode, or none since they became non-finite"""


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """The best setting with one thing moved a little."""

    setting: str
    value: float
    iqm: float
    low: float
    high: float
    p: float
    """p-value of the permutation test against the best, with Holm's correction for all neighbours"""
    lost: float
    """share of the best's gain over the random policy that it loses; NaN if no gain is shown"""
    breaks: bool
    """whether it loses more than half of the gain, and is significantly worse"""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The result of a search."""

    agent: str
    env_id: str
    space: Space
    base: dict[str, Any]
    """the settings that the search began from"""
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    """best first"""
    region: dict[str, tuple[Any, ...]]
    """setting -> values of the best (see TOP): of a range the middle 80 %, (low, high); else the choices that occur"""
    regression: importance.Regression | None
    ped_anova: dict[str, float] | None
    """None if optuna is not installed"""
    confirmed: Comparison | None
    """the best against the settings the search began from, on fresh seeds"""
    neighbours: tuple[Neighbour, ...]

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def too_sensitive(self) -> bool:
        return any(n.breaks for n in self.neighbours)

    @property
    def verdict(self) -> str:
        """Whether the best setting can be trusted, in a sentence; '' if that was not tried."""
        if not self.neighbours:
            return ""
        worst = max(self.neighbours, key=lambda n: (n.breaks, n.lost))
        what = f"{worst.setting} {worst.value:g} in place of {self.best.settings[worst.setting]:g}"
        if math.isnan(worst.lost):
            return (
                "no gain over a random policy is shown, so that nothing is said of small changes; more --confirm-seeds "
                "may show one"
            )
        if worst.breaks:
            return f"too sensitive to be trusted: {what} costs {worst.lost:.0%} of what was gained (p = {worst.p:.2g})"
        if worst.lost > BROKEN:
            return (
                f"perhaps too sensitive: {what} cost {worst.lost:.0%} of what was gained, which may be chance with so "
                "few seeds; more --confirm-seeds would tell"
            )
        return (
            f"not sensitive: moving a setting by {SMALL:.0%} of its range costs at most {max(worst.lost, 0):.0%} of "
            f"what was gained ({what})"
        )


def sweep(
    agent: Any,
    config: Any,
    space: Space | None = None,
    *,
    num_settings: int = 64,
    num_seeds: int = 4,
    seed: int = 0,
    confirm_seeds: int = 32,
    env: Any = None,
    env_params: Any = None,
    folder: Path | None = None,
    memory_gb: float | None = None,
    display: Display | None = None,
) -> Sweep:
    """Run a random search, and analyse its result.

    Args:
      agent, env, env_params, memory_gb, display: as in `rlref.train`.
      config: the values of settings that are not searched; the best is compared with it.
      space: setting -> its Range or its choices; by default the ranges that the Config gives. Every combination of
        choices for settings that are not traced is compiled as a program of its own.
      num_settings: how many to draw.
      num_seeds: seeds of each, at least 2; their ids start at `seed`, which is also the seed of the draws.
      confirm_seeds: fresh seeds to train the best, its neighbours and `config` with; 0 for none.
      folder: where to write `search`, `confirm` (runs' folders), `trials.csv`, `sweep.json`, `settings.png`. If it
        holds part of the same sweep already, that part is continued.

    Raises UsageError for what cannot be searched, `errors.Stopped` if a signal stops it.
    """
    module = load_agent(agent)
    made, params = resolved(config.env_id, env, env_params)
    space = check_space(module, config, space, made, params)
    least_of = {"num_settings": (num_settings, 2), "num_seeds": (num_seeds, 2)}
    least_of |= {"confirm_seeds": (confirm_seeds, 0), "seed": (seed, 0)}
    for name, (value, least) in least_of.items():
        if value < least:
            why = "; one half of the seeds chooses, the other reports" if name == "num_seeds" else ""
            raise UsageError(f"{name} is {value}; it must be at least {least}{why}")
    if folder is not None:
        variants.refuse_others(folder, "search")
    train = functools.partial(
        variants.train,
        module,
        config,
        env=env,
        env_params=env_params,
        memory_gb=memory_gb,
        display=display,
    )
    places, drawn = draw(space, num_settings, seed)
    search = train(
        {f"setting {i}": settings for i, settings in enumerate(drawn)},
        num_seeds=num_seeds,
        seed=seed,
        folder=folder and folder / "search",
    )
    trials = ranked_trials(drawn, list(search.values()))
    scores = np.array([trial.scores for trial in sorted(trials, key=lambda t: t.number)])
    confirmed: Comparison | None = None
    neighbours: tuple[Neighbour, ...] = ()
    if confirm_seeds:
        moves = neighbour_values(space, trials[0].settings)
        changes = {f"{name} {value:g}": {**trials[0].settings, name: value} for name, value in moves}
        again = train(
            {"as given": {}, "best": trials[0].settings, **changes},
            num_seeds=confirm_seeds,
            seed=seed + num_seeds,
            folder=folder and folder / "confirm",
        )
        given, best = again.pop("as given"), again.pop("best")
        labelled = {"as given": given, "best": best}
        confirmed = compare.compare([Method(label, {config.env_id: run}) for label, run in labelled.items()])
        random = float(reference.random_returns(made, params).mean())
        neighbours = judged_neighbours(best, dict(zip(moves, again.values(), strict=True)), random, config.env_id)
    found = Sweep(
        agent=name_of(module),
        env_id=config.env_id,
        space=space,
        base=settings_of(config),
        seeds=tuple(range(seed, seed + num_seeds)),
        trials=trials,
        region=region(space, trials),
        regression=importance.regression(scores, places),
        ped_anova=importance.ped_anova(scores.mean(axis=1), places, TOP),
        confirmed=confirmed,
        neighbours=neighbours,
    )
    if folder is not None:
        write(found, places, scores, folder)
    return found


def ranked_trials(drawn: Sequence[dict[str, Any]], trained: Sequence[Run]) -> tuple[Trial, ...]:
    """The settings that were drawn, best first: by the mean score of their first half of seeds, ties by area."""
    seeds = compare.seeds_of(trained)
    finals = stats.failed_as_worst([one.final for one in seeds])
    areas = stats.failed_as_worst([one.area for one in seeds])
    half = len(finals[0]) // 2
    trials = [
        Trial(
            number=i,
            settings=settings,
            scores=tuple(final.tolist()),
            chosen_by=float(final[:half].mean()),
            reported=float(final[half:].mean()),
            area=float(area[:half].mean()),
            failed=one.failed,
        )
        for i, (settings, one, final, area) in enumerate(zip(drawn, seeds, finals, areas, strict=True))
    ]
    return tuple(sorted(trials, key=lambda trial: (-trial.chosen_by, -trial.area)))


def region(space: Space, trials: Sequence[Trial]) -> dict[str, tuple[Any, ...]]:
    """Where the best are; see `Sweep.region`."""
    top = trials[: top_of(len(trials))]
    found: dict[str, tuple[Any, ...]] = {}
    for name, x in space.items():
        values = [trial.settings[name] for trial in top]
        if isinstance(x, Range):
            found[name] = tuple(np.quantile(values, [0.1, 0.9], method="nearest").tolist())
        else:
            found[name] = tuple(choice for choice in x if choice in values)
    return found


def top_of(num_settings: int) -> int:
    """How many count as the best: a tenth, and five at least."""
    return min(num_settings, max(5, round(TOP * num_settings)))


def neighbour_values(space: Space, best: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(setting, value): each number a little lower, and a little higher, but within its range."""
    out = []
    for name, x in space.items():
        if not isinstance(x, Range):
            continue
        here = x.place(best[name])
        for place in (max(here - SMALL, 0.0), min(here + SMALL, 1.0)):
            value = float(x.at(np.array(place)))
            if abs(place - here) > SMALL / 10:
                out.append((name, value))
    return out


def judged_neighbours(
    best: Run, neighbours: Mapping[tuple[str, float], Run], random: float, env_id: str
) -> tuple[Neighbour, ...]:
    """Whether a small change breaks the best setting; `random` is what a random policy reaches."""
    if not neighbours:
        return ()
    labelled = {"best": best, **{f"{name} {value:g}": run for (name, value), run in neighbours.items()}}
    result = compare.compare([Method(label, {env_id: run}) for label, run in labelled.items()]).results[0]
    first, *others = result.summaries
    gained = first.iqm - random if first.low > random else float("nan")
    out = []
    for (name, value), s, contrast in zip(neighbours, others, result.contrasts, strict=True):
        lost = -contrast.difference / gained
        breaks = contrast.verdict == "worse" and lost > BROKEN
        out.append(Neighbour(name, value, s.iqm, s.low, s.high, contrast.p_holm, lost, breaks))
    return tuple(out)


def write(found: Sweep, places: Mapping[str, Array], scores: Array, folder: Path) -> None:
    """Write what a search found to its folder. Raises UsageError if that cannot be."""
    import pandas as pd

    rows = [
        {**t.settings, "chosen_by": t.chosen_by, "reported": t.reported, "failed": t.failed, "setting": t.number}
        for t in found.trials
    ]
    with files.writing(folder):
        files.write(folder / "trials.csv", lambda file: pd.DataFrame(rows).to_csv(file, index=False))
        files.write_json(folder / "sweep.json", to_json(found))
        files.write(folder / "settings.png", lambda file: figure(found, places, scores).savefig(file, dpi=110))


def tables(found: Sweep) -> list[Table]:
    """The result of a search as tables."""
    regression = found.regression
    rows = []
    for name, x in found.space.items():
        row = {"setting": name, "searched": str(x) if isinstance(x, Range) else ", ".join(map(str, x))}
        if regression:
            one = regression.importances[name]
            row["importance [95 % interval]"] = f"{one.share:.1%} [{one.low:.1%}, {one.high:.1%}]"
            row["p"] = f"{one.p:.2g}"
        if found.ped_anova:
            row["PED-ANOVA"] = f"{found.ped_anova[name]:.1%}"
        region = found.region[name]
        row[f"best {top_of(len(found.trials))}"] = (
            " to ".join(f"{v:.3g}" for v in region) if isinstance(x, Range) else str(region)
        )
        row["best"] = f"{found.best.settings[name]}"
        row["as given"] = f"{found.base[name]}"
        rows.append(row)
    best = [
        {
            "setting": str(t.number),
            "chosen by": f"{t.chosen_by:.4g}",
            "reported": f"{t.reported:.4g}",
            **{name: f"{x:.3g}" if isinstance(x, float) else str(x) for name, x in t.settings.items()},
        }
        for t in found.trials[:10]
    ]
    moves = [
        {
            "change": f"{n.setting} {n.value:g}",
            "IQM [95 % interval]": with_interval(n.iqm, n.low, n.high),
            "gain lost": "-" if math.isnan(n.lost) else f"{max(n.lost, 0):.0%}",
            "p (Holm)": f"{n.p:.2g}",
            "": "breaks" if n.breaks else "",
        }
        for n in found.neighbours
    ]
    half = len(found.seeds) // 2
    chosen, reported = (f"{part[0]} to {part[-1]}" for part in (found.seeds[:half], found.seeds[half:]))
    seeds = f"chosen by seeds {chosen}, reported by {reported}"
    out = [
        Table("Settings: how much of the score's variance each accounts for", rows),
        Table(f"The best of {len(found.trials)}, {seeds}", best),
    ]
    if found.confirmed:
        out += [table for table in comparison_tables(found.confirmed) if "Settings" not in table.title]
        out.append(Table("The best with one setting moved by a tenth of its range", moves))
    return out


def sentences(found: Sweep) -> list[str]:
    """The conclusions of a search."""
    out = []
    if regression := found.regression:
        matter = [name for name, one in regression.importances.items() if one.p < 0.05 / len(regression.importances)]
        matter.sort(key=lambda name: -regression.importances[name].share)
        out.append(
            f"{', '.join(matter) or 'no setting'} shown to matter; all settings together account for "
            f"{regression.explained:.0%} of the variance, the seeds' luck for {regression.luck:.0%}; the rest are "
            "interactions, and curves that are no parabolas"
        )
    else:
        out.append("too few settings were tried, or all scored the same: nothing is said of their importance")
    if failed := sum(trial.failed for trial in found.trials):
        out.append(
            f"{failed} of {len(found.trials) * len(found.seeds)} trainings failed, and count as the lowest score"
        )
    out.append(
        f"the best was chosen at {found.best.chosen_by:.4g} and is worth {found.best.reported:.4g} by its other seeds"
    )
    if found.confirmed:
        out.append(found.confirmed.sentences[0])
    return out + [found.verdict] * bool(found.verdict)


def to_json(found: Sweep) -> dict[str, Any]:
    """The result of a search as plain dictionaries and lists."""
    value = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    value["space"] = {name: x._asdict() if isinstance(x, Range) else list(x) for name, x in found.space.items()}
    value["trials"] = [dataclasses.asdict(trial) for trial in found.trials]
    value["neighbours"] = [dataclasses.asdict(neighbour) for neighbour in found.neighbours]
    regression = found.regression
    value["regression"] = regression and {
        "importances": {name: x._asdict() for name, x in regression.importances.items()},
        "explained": regression.explained,
        "luck": regression.luck,
    }
    value["confirmed"] = found.confirmed and comparison_to_json(found.confirmed)
    return value | {"verdict": found.verdict}


def figure(found: Sweep, places: Mapping[str, Array], scores: Array) -> Any:
    """Mean scores against the place of each setting, the curve of the regression, and the best."""
    from matplotlib.figure import Figure

    columns = min(4, len(places))
    rows = math.ceil(len(places) / columns)
    drawn = Figure((3.4 * columns, 2.7 * rows + 0.4), layout="constrained")
    grid = drawn.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(places) :]:
        axes.set_visible(False)
    for axes, (name, place) in zip(grid.flat, places.items(), strict=False):
        x = found.space[name]
        if isinstance(x, Range):  # on its own scale, whatever that is
            ticks = np.array([0, 0.25, 0.5, 0.75, 1])
            axes.set_xticks(ticks, [f"{value:.3g}" for value in x.at(ticks)], fontsize=8)
        else:
            place = place + np.random.default_rng(0).uniform(-0.2, 0.2, len(place))
            axes.set_xticks(range(len(x)), [str(choice) for choice in x])
        axes.plot(place, scores.mean(axis=1), ".", color="0.55", markersize=4)
        axes.plot(place[found.best.number], found.best.reported, "*", color="#d55e00", markersize=12)
        if found.regression and name in found.regression.curves:
            axes.plot(importance.PLACES, found.regression.curves[name], color="#0072b2", linewidth=2)
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("score")
    drawn.suptitle(f"{found.agent}, {found.env_id}: {len(found.trials)} settings; star: the best, by its other seeds")
    return drawn
