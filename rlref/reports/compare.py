"""Comparing runs: is one method better than another, by how much, and could it be chance?

    comparison = compare.compare(compare.read(["runs/ppo", "runs/dqn"]))
    comparison.sentences                                    or: rlref compare runs/ppo runs/dqn

A method is a label and a run per environment; the first is the baseline. A seed has two quantities: its final score
(`Run.scores`), and the mean of its score over training, as the area under its learning curve.

One method is called better than another if a permutation test of the difference of their IQMs gives p < .05 and the
difference's bootstrap interval does not hold 0. The test is exact, however few the seeds, but for the question whether
both give the same distribution of scores: of 16 normal scores each with equal IQMs but five times the spread in one, it
alone sees a difference in a quarter of cases. The interval does not mind unequal spreads, but is too narrow with few
seeds. Both together erred in at most 8 % of cases with the 5 to 32 seeds that were tried, alike or not.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlref import stats
from rlref.errors import UsageError
from rlref.health import findings
from rlref.reports import reference
from rlref.runs.folder import read_about
from rlref.runs.run import Run, load

Array = np.ndarray

QUANTITIES = {"final": "final score", "area": "mean score over training"}
GRID = 1001  # points of a learning curve's area
THRESHOLDS = 101  # of a performance profile


@dataclasses.dataclass(frozen=True)
class Method:
    """What is compared: a label, and a run of one setting per environment."""

    label: str
    runs: dict[str, Run]
    """by environment"""


@dataclasses.dataclass(frozen=True)
class Summary:
    """One method's seeds in one quantity. Failed seeds count as the lowest score of any method there."""

    method: str
    scores: tuple[float, ...]
    """of each seed, NaN where it failed; over all environments normalised, an environment's after another's"""
    failed: int
    """seeds without a score"""
    iqm: float
    low: float
    high: float
    """`low` and `high`: the 95 % bootstrap interval of the IQM"""
    mean: float
    median: float
    min: float
    max: float

    @property
    def num_seeds(self) -> int:
        """Over all environments the seeds of all of them, together."""
        return len(self.scores)


@dataclasses.dataclass(frozen=True)
class Contrast:
    """One method against the baseline in one quantity. Intervals are 95 % bootstrap intervals."""

    method: str
    baseline: str
    difference: float
    """IQM of the method minus IQM of the baseline"""
    low: float
    high: float
    p: float
    """of the permutation test, two-sided"""
    p_holm: float
    """the same after Holm's correction for the number of methods"""
    smallest_p: float
    """the smallest `p_holm` that any split of these scores could give: from .05 on nothing can be decided"""
    probability: float
    """that a seed of the method beats one of the baseline, a tie counting half"""
    probability_low: float
    probability_high: float
    paired: bool
    """whether seed i was compared with seed i"""
    seeds_needed: int | None
    """per method, to show a difference of this size in four of five comparisons of two methods; None if it is 0"""
    verdict: str
    """`better` or `worse` if p_holm < .05 and 0 is outside [low, high]; else `not shown` or `undecidable`"""
    sentence: str


@dataclasses.dataclass(frozen=True)
class Profile:
    """One method's performance profile: the share of its seeds above each threshold, with a pointwise 95 % band."""

    method: str
    thresholds: np.ndarray
    """`[T]`, the same for all methods; in the unit of the scores"""
    share: np.ndarray
    """`[T]`"""
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Result:
    """All methods in one quantity, on one environment or on all of them."""

    environment: str | None
    """None: all of them, scores normalised as (score - random) / (reference - random)"""
    quantity: str
    """a key of `QUANTITIES`"""
    summaries: tuple[Summary, ...]
    """in the order of the methods: the baseline's first"""
    contrasts: tuple[Contrast, ...]
    """of every method but the baseline"""
    profiles: tuple[Profile, ...]
    """in the order of the methods"""


class Scale(NamedTuple):
    """What normalises the scores of an environment: there 0 is a random policy, and 1 the reference."""

    environment: str
    random: float
    reference: float
    source: str
    """whose score the reference is"""


class Difference(NamedTuple):
    """A setting that is not the same in all runs on an environment."""

    environment: str
    setting: str
    values: tuple[str, ...]
    """in the order of the methods; "-" where a method has no such setting"""


class Table(NamedTuple):
    """A title, and rows of the same columns: `pandas.DataFrame(rows)`. Numbers are text, rounded for reading."""

    title: str
    rows: list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    methods: tuple[Method, ...]
    """the baseline first; learning curves are those of their runs"""
    environments: tuple[str, ...]
    results: tuple[Result, ...]
    """per environment and quantity"""
    overall: tuple[Result, ...]
    """per quantity, over all environments; none for a single one"""
    scales: tuple[Scale, ...]
    """per environment, of several; none for a single one"""
    differing: tuple[Difference, ...]
    warnings: tuple[str, ...]
    """what speaks against reading too much into it"""
    sentences: tuple[str, ...]
    """what it comes to: a sentence per contrast, then what the runs differ in"""


def read(arguments: Sequence[str]) -> list[Method]:
    """The methods that a command line names: each "path", or "label=path[,path...]" with a run per environment.

    "path#3" is setting 3 of a run with batched settings. Runs without a label are a method each if all runs are on one
    environment, labelled by their folders; on several, those of one agent are one method. Raises UsageError for what
    cannot be read, or cannot be told apart.
    """
    given = [_labelled(argument) for argument in arguments]
    loaded = [(label, [(path, _run_at(path)) for path in paths]) for label, paths in given]
    single = len({_environment(run) for _, named in loaded for _, run in named}) == 1
    names = Counter(Path(path).name for label, named in loaded if label is None for path, _ in named)
    methods: dict[str, dict[str, Run]] = {}
    for label, named in loaded:
        for path, run in named:
            folder = Path(path).name
            own = label or ((folder if names[folder] == 1 else path) if single else run.agent)
            _add(methods.setdefault(own, {}), own, run)
    return [Method(label, by_environment) for label, by_environment in methods.items()]


def _labelled(argument: str) -> tuple[str | None, list[str]]:
    """The label, None without one, and the paths of an argument. A folder whose name holds an "=" is a path."""
    label, equals, paths = argument.partition("=")
    if not equals or _folder_and_setting(argument)[0].is_dir():
        return None, [argument]
    if not label or not all(paths.split(",")):
        raise UsageError(f"{argument!r} names no run: a method is PATH, or LABEL=PATH[,PATH...]")
    return label, paths.split(",")


def _folder_and_setting(path: str) -> tuple[Path, str | None]:
    """A run's folder, and what stands after "#"; a folder whose own name holds a "#" is a folder."""
    folder, mark, setting = path.rpartition("#")
    return (Path(folder), setting) if mark and not Path(path).is_dir() else (Path(path), None)


def _run_at(path: str) -> Run:
    folder, setting = _folder_and_setting(path)
    run = load(folder)
    if setting is None:
        return run
    if not setting.isdecimal():
        raise UsageError(f"{path!r} names no setting: that is a number from 0 on, as in {folder}#0")
    return run.of_setting(int(setting))


def _add(by_environment: dict[str, Run], label: str, run: Run) -> None:
    environment = _environment(run)
    if environment in by_environment:
        raise UsageError(
            f"{label} has two runs on {environment}: say what is one method, as LABEL=PATH[,PATH...] for each of them"
        )
    by_environment[environment] = run


def _about(run: Run) -> dict[str, Any]:
    """What the run's folder says of it; nothing for a run that was not kept."""
    return read_about(run.path) if run.path else {}


def _environment(run: Run) -> str:
    """The environment's id; the name of its class, where it was given from Python."""
    return str(_about(run).get("env") or run.config.get("env_id", "an environment"))


def compare(methods: Sequence[Method], references: Mapping[str, float] | None = None) -> Comparison:
    """Compare every method with the first, on each environment, and on all of them together if there are several.

    `references` are scores that count as 1 when scores are normalised, where `rlref.reference` has none or another.
    Methods are compared seed by seed ("paired") if they have the same seed ids on every environment, and enough of them
    (10, see `stats.least_seeds`) that swapping labels within pairs can come below .05. Holm's correction is for the
    number of methods; the environments, and the second quantity, are further looks that nothing corrects for. Raises
    UsageError if the methods do not cover the same environments, or there is no score to compare or to normalise by.
    """
    environments = _environments(methods)
    labels = [method.label for method in methods]
    seeds = {name: seeds_of([method.runs[name] for method in methods]) for name in environments}
    several = len(environments) > 1
    scales = [_scale(name, methods, references) for name in environments] if several else []
    results = [
        _result(name, quantity, labels, [[one] for one in per_method])
        for name, per_method in seeds.items()
        for quantity in QUANTITIES
    ]
    differing = [row for name in environments for row in _differing(name, methods)]
    warnings = [text for name, each in seeds.items() for text in _warnings(name, methods, each)]
    if changed := sorted({row.environment for row in differing if row.setting.startswith("env_params.")}):
        warnings.append(f"the parameters of {', '.join(changed)} differ: the methods had other tasks there")
    overall = []
    columns = [list(column) for column in zip(*seeds.values(), strict=True)]
    if several and (uneven := _uneven(labels, environments, columns)):
        warnings.append(uneven)
    elif several:
        normalised = [
            [_normalised(one, scale) for one, scale in zip(column, scales, strict=True)] for column in columns
        ]
        overall = [_result(None, quantity, labels, normalised) for quantity in QUANTITIES]
    verdicts = [
        f"{result.environment or 'all environments'}, {QUANTITIES[result.quantity]}: {contrast.sentence}"
        for result in [*overall, *results]
        for contrast in result.contrasts
    ]
    return Comparison(
        methods=tuple(methods),
        environments=tuple(environments),
        results=tuple(results),
        overall=tuple(overall),
        scales=tuple(scales),
        differing=tuple(differing),
        warnings=tuple(warnings),
        sentences=(*verdicts, _difference_in_words(differing)),
    )


def _environments(methods: Sequence[Method]) -> list[str]:
    """The environments of all methods. Raises UsageError where they are not the same, or something cannot be."""
    if len(methods) < 2:
        several = f"; the runs given count as one, {methods[0].label}: label them, as LABEL=PATH" * bool(methods)
        raise UsageError(f"a comparison takes two methods at least, the baseline first{several}")
    if twice := [label for label, count in Counter(method.label for method in methods).items() if count > 1]:
        raise UsageError(f"two methods are called {twice[0]}: label them, as LABEL=PATH")
    everywhere = list(dict.fromkeys(name for method in methods for name in method.runs))
    for method in methods:
        if missing := [name for name in everywhere if name not in method.runs]:
            raise UsageError(f"{method.label} has no run on {', '.join(missing)}; all methods need the same ones")
        for name, run in method.runs.items():
            if run.batched:
                choice = f"{run.path or 'PATH'}#0"
                raise UsageError(f"{method.label} has several settings on {name}: choose one, as {choice}")
            if run.score not in run.metrics:
                raise UsageError(f"{method.label} has no score on {name}: its agent reports no {run.score}")
    return everywhere


class Seeds(NamedTuple):
    """One method on one environment: what each seed that was trained came to; NaN where it failed."""

    ids: tuple[int, ...]
    final: Array
    """`[S]`"""
    area: Array
    """`[S]`"""

    @property
    def failed(self) -> int:
        return int((~np.isfinite(self.final)).sum())


def seeds_of(compared: Sequence[Run]) -> list[Seeds]:
    """What the seeds of all runs on one environment came to.

    A seed that became non-finite and has had no score since has failed, and so has one that never had any. Rows that an
    interrupted run never began are no seeds. The area is the mean of the score over environment steps, by trapezoids on
    a grid from 0 to the end of the shortest training of all these runs' seeds, so that all are means over the same
    steps. Before its first finished episode a seed has no score: its first one stands there.
    """
    begun = [np.isfinite(run.metrics["env_steps"]).any(axis=1) for run in compared]
    if not all(one.any() for one in begun):
        raise UsageError("a run has no seed that was trained at all: there is nothing to compare")
    end = min(stats.last(run.metrics["env_steps"])[rows].min() for run, rows in zip(compared, begun, strict=True))
    out = []
    for run, rows in zip(compared, begun, strict=True):
        lost = _lost(run)
        final = np.where(lost, np.nan, run.scores.astype(np.float64))
        area = np.where(lost, np.nan, _areas(run, float(end)))
        ids = tuple(int(seed) for seed, trained in zip(run.seeds, rows, strict=True) if trained)
        out.append(Seeds(ids, final[rows], area[rows]))
    return out


def _lost(run: Run) -> Array:
    """Seeds `[S]` that became non-finite and have had no score since; the last one from before would flatter them."""
    if "nonfinite" not in run.metrics:
        return np.zeros(len(run.seeds), bool)
    reached = np.isfinite(run.metrics["env_steps"])
    last_update = reached.shape[1] - 1 - np.argmax(reached[:, ::-1], axis=1)
    at_end = run.metrics[run.score][np.arange(len(reached)), last_update]
    return (run.metrics["nonfinite"] > 0).any(axis=1) & ~np.isfinite(at_end)


def _areas(run: Run, end: float) -> Array:
    """Each seed's mean score over its first `end` environment steps, `[S]`; NaN for one that never has a score."""
    grid = np.linspace(0, end, GRID)
    areas = np.full(len(run.seeds), np.nan)
    for i, (steps, score) in enumerate(zip(run.metrics["env_steps"], run.metrics[run.score], strict=True)):
        known = np.isfinite(steps) & np.isfinite(score)
        if known.any():
            curve = np.interp(grid, steps[known].astype(np.float64), score[known].astype(np.float64))
            areas[i] = np.trapezoid(curve, grid) / end
    return areas


def _scale(environment: str, methods: Sequence[Method], references: Mapping[str, float] | None) -> Scale:
    if any(_about(method.runs[environment]).get("env") for method in methods):
        raise UsageError(
            f"{environment} was given from Python, so a random policy cannot be tried in it: compare on it alone"
        )
    score, source = reference.reference_of(environment, references)
    random = reference.random_return(environment)
    if score <= random:
        raise UsageError(f"the reference score of {environment} is {score:g}, not above a random policy's {random:.4g}")
    return Scale(environment, random, score, source)


def _normalised(seeds: Seeds, scale: Scale) -> Seeds:
    span = scale.reference - scale.random
    return Seeds(seeds.ids, (seeds.final - scale.random) / span, (seeds.area - scale.random) / span)


def _uneven(labels: Sequence[str], environments: Sequence[str], columns: Sequence[Sequence[Seeds]]) -> str:
    """Why scores cannot be pooled over environments; "" where they can."""
    for label, column in zip(labels, columns, strict=True):
        numbers = [len(one.ids) for one in column]
        if len(set(numbers)) > 1:
            each = ", ".join(f"{n} on {name}" for n, name in zip(numbers, environments, strict=True))
            return f"nothing is said over all environments: {label} has {each}, which would count unequally"
    return ""


def _result(
    environment: str | None, quantity: str, labels: Sequence[str], columns: Sequence[Sequence[Seeds]]
) -> Result:
    """All methods in one quantity; a column holds a method's seeds on each environment."""
    raw = [[getattr(one, quantity) for one in column] for column in columns]
    per_environment = [stats.failed_as_worst(row) for row in zip(*raw, strict=True)]
    strata = [list(column) for column in zip(*per_environment, strict=True)]
    thresholds = _thresholds(np.concatenate([x for column in strata for x in column]))
    return Result(
        environment=environment,
        quantity=quantity,
        summaries=tuple(_summary(*each) for each in zip(labels, raw, strata, strict=True)),
        contrasts=_contrasts(labels, columns, strata),
        profiles=tuple(
            Profile(label, thresholds, *stats.performance_profile(column, thresholds))
            for label, column in zip(labels, strata, strict=True)
        ),
    )


def _thresholds(scores: Array) -> Array:
    """From just below the lowest score, where every profile is 1, to just above the highest, where it is 0."""
    low, high = scores.min(), scores.max()
    margin = 0.05 * (high - low) or max(0.05 * abs(high), 1e-3)
    return np.linspace(low - margin, high + margin, THRESHOLDS)


def _summary(label: str, raw: Sequence[Array], strata: Sequence[Array]) -> Summary:
    scores = np.concatenate(strata)
    low, high = stats.stratified_iqm_interval(strata)
    seeds = np.concatenate(raw)
    return Summary(
        method=label,
        scores=tuple(seeds.tolist()),
        failed=int((~np.isfinite(seeds)).sum()),
        iqm=stats.iqm(scores),
        low=low,
        high=high,
        mean=float(scores.mean()),
        median=float(np.median(scores)),
        min=float(scores.min()),
        max=float(scores.max()),
    )


def _contrasts(
    labels: Sequence[str], columns: Sequence[Sequence[Seeds]], strata: Sequence[Sequence[Array]]
) -> tuple[Contrast, ...]:
    """Every method against the first."""
    pairing = [_paired(column, columns[0]) for column in columns[1:]]
    tests = [stats.permutation_test(x, strata[0], paired=p) for x, p in zip(strata[1:], pairing, strict=True)]
    corrected, least = stats.holm([t.p for t in tests]), stats.holm([t.smallest for t in tests])
    out = []
    for i, (paired, test) in enumerate(zip(pairing, tests, strict=True)):
        method, baseline = strata[i + 1], strata[0]
        difference = stats.iqm_difference(method, baseline, paired=paired)
        better = stats.probability_of_improvement(method, baseline, paired=paired)
        contrast = Contrast(
            method=labels[i + 1],
            baseline=labels[0],
            difference=difference.value,
            low=difference.low,
            high=difference.high,
            p=test.p,
            p_holm=corrected[i],
            smallest_p=least[i],
            probability=better.value,
            probability_low=better.low,
            probability_high=better.high,
            paired=paired,
            seeds_needed=stats.seeds_needed(method, baseline, paired=paired),
            verdict=_verdict(difference, corrected[i], least[i], min(sum(map(len, x)) for x in (method, baseline))),
            sentence="",
        )
        out.append(dataclasses.replace(contrast, sentence=_in_words(contrast, method, baseline, len(tests))))
    return tuple(out)


def _paired(method: Sequence[Seeds], baseline: Sequence[Seeds]) -> bool:
    """Whether seed i can be compared with seed i: a rule that looks at no score."""
    least = stats.least_seeds(paired=True)
    return all(one.ids == other.ids and len(one.ids) >= least for one, other in zip(method, baseline, strict=True))


def _verdict(difference: stats.Estimate, p: float, least: float, seeds: int) -> str:
    """`seeds` are those of the method that has fewer: of one or two no interval can be trusted, whatever p is."""
    if seeds < stats.least_seeds() or least >= stats.ALPHA:
        return "undecidable"
    if p < stats.ALPHA and (difference.low > 0 or difference.high < 0):
        return "better" if difference.value > 0 else "worse"
    return "not shown"


def _in_words(contrast: Contrast, method: Sequence[Array], baseline: Sequence[Array], comparisons: int) -> str:
    """A contrast in one sentence."""
    c = contrast
    corrected = f" (Holm, {comparisons} comparisons)" * (comparisons > 1)
    found = f"IQM difference {_number(c.difference)} {_interval(c.low, c.high)}, {_p(c.p_holm)}{corrected}"
    if c.verdict in ("better", "worse"):
        return f"{c.method} is {c.verdict} than {c.baseline}: {found}"
    if c.verdict == "undecidable":
        return f"{c.method} against {c.baseline}: {_why_undecidable(c, method, baseline, comparisons)}"
    one, other = len(method[0]), len(baseline[0])
    seeds = f"{one} pairs of seeds" if c.paired else f"{one} seeds" if one == other else f"{one} against {other} seeds"
    each = " per environment" * (len(method) > 1)
    more = ""
    if c.p_holm < stats.ALPHA:
        more = "; they are not distributed alike, but their IQMs may well be equal"
    elif c.seeds_needed and c.seeds_needed > max(one, other):
        more = f"; about {c.seeds_needed:,} per method{' and environment' * bool(each)} would show one of this size"
    return f"no difference shown between {c.method} and {c.baseline} with these {seeds}{each}: {found}{more}"


def _why_undecidable(c: Contrast, method: Sequence[Array], baseline: Sequence[Array], comparisons: int) -> str:
    """Too few seeds, or too many ties: what the smallest p of untied scores would have been tells which."""
    pooled = np.concatenate([*method, *baseline])
    if (pooled == pooled[0]).all():
        return f"no difference: all {len(pooled)} scores are {_number(pooled[0])}"
    if c.paired and all(np.array_equal(x, y) for x, y in zip(method, baseline, strict=True)):
        return "no difference: the scores are the same, seed by seed"
    one, other = (sum(map(len, x)) for x in (method, baseline))
    if min(one, other) < stats.least_seeds():
        return (
            f"too few seeds to decide anything: {one} against {other}; it takes {stats.least_seeds()} of each at least"
        )
    untied = [(np.arange(len(x)), len(x) + np.arange(len(y))) for x, y in zip(method, baseline, strict=True)]
    possible = stats.permutation_test([x for x, _ in untied], [y for _, y in untied], paired=c.paired).smallest
    among = f" and {comparisons} comparisons" * (comparisons > 1)
    least = f"the smallest p that can come out is {_p(c.smallest_p, '')}"
    if possible * comparisons >= stats.ALPHA:
        return f"too few seeds to decide anything: with {len(method[0])} against {len(baseline[0])}{among} {least}"
    tied = sum(n for n in Counter(pooled.tolist()).values() if n > 1)
    return (
        f"nothing can be decided: {tied} of {len(pooled)} scores are tied{among}, and {least}; "
        "the IQM does not see the worst quarter, so look at the lowest scores"
    )


def _warnings(environment: str, methods: Sequence[Method], seeds: Sequence[Seeds]) -> list[str]:
    """What speaks against reading too much into the runs on one environment."""
    out = []
    for method, one in zip(methods, seeds, strict=True):
        run, name = method.runs[environment], f"{method.label} on {environment}"
        if (status := run.summary.get("status", "finished")) != "finished":
            out.append(f"{name} did not finish: it is {status}")
        if left := len(run.seeds) - len(one.ids):
            out.append(f"{name}: {left} of {len(run.seeds)} seeds were never begun, and are left out")
        if one.failed:
            out.append(
                f"{name}: {one.failed} of {len(one.ids)} seeds have no score, and count as the lowest of any method"
            )
        errors = [finding for finding in run.diagnose().findings if finding.worst == "ERROR"]
        out += [f"{name} is diagnosed with an ERROR: {findings.headline(finding)}" for finding in errors]
    compared = {method.label: method.runs[environment] for method in methods}
    steps = {label: float(np.nanmax(run.metrics["env_steps"])) for label, run in compared.items()}
    if max(steps.values()) > 1.01 * min(steps.values()):
        each = ", ".join(f"{label} {n:,.0f}" for label, n in steps.items())
        out.append(f"the trainings on {environment} are of different lengths, in steps: {each}")
    if len({run.score for run in compared.values()}) > 1:
        each = ", ".join(f"{label} {run.score}" for label, run in compared.items())
        out.append(f"the scores on {environment} are not the same quantity: {each}")
    return out


def _differing(environment: str, methods: Sequence[Method]) -> list[Difference]:
    """The settings of the agent, and the parameters of the environment, that are not the same in all runs."""
    each = [_settings(method.runs[environment]) for method in methods]
    names = dict.fromkeys(name for settings in each for name in settings)
    if len({settings["agent"] for settings in each}) > 1:  # they have other files and settings: what they share counts
        names = {name: None for name in names if name != "agent's file" and all(name in settings for settings in each)}
    elif not all("agent's file" in settings for settings in each):
        names.pop("agent's file", None)  # a run that was not kept names none
    rows = [Difference(environment, name, tuple(_shown(x.get(name)) for x in each)) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]


def _settings(run: Run) -> dict[str, Any]:
    about = _about(run)
    settings = {"agent": run.agent, **{name: x for name, x in run.config.items() if name != "env_id"}}
    if about.get("source_sha256"):
        settings["agent's file"] = about["source_sha256"][:8]
    return settings | {f"env_params.{name}": x for name, x in about.get("env_params_values", {}).items()}


def _shown(setting: Any) -> str:
    """A setting in few characters; "-" for one that is not there."""
    if setting is None:
        return "-"
    return f"{setting:g}" if isinstance(setting, float) else str(setting)


def _difference_in_words(differing: Sequence[Difference]) -> str:
    names = list(dict.fromkeys(row.setting for row in differing))
    if not names:
        return "the runs have the same settings"
    if len(names) == 1:
        return f"the runs differ in {names[0]} alone"
    listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"the runs differ in {len(names)} settings ({listed}): no difference can be put down to one of them"


def tables(comparison: Comparison) -> list[Table]:
    """Everything as tables for reading: scores and contrasts of each result, normalisation, and differing settings."""
    out = []
    for result in [*comparison.overall, *comparison.results]:
        name = f"{result.environment or 'All environments, normalised'}: {QUANTITIES[result.quantity]}"
        out.append(Table(name, [_summary_row(one) for one in result.summaries]))
        baseline = result.summaries[0].method
        out.append(Table(f"{name}, against {baseline}", [_contrast_row(one) for one in result.contrasts]))
    if comparison.scales:
        rows = [
            {
                "environment": scale.environment,
                "random policy": _number(scale.random),
                "reference": _number(scale.reference),
                "source of the reference": scale.source,
            }
            for scale in comparison.scales
        ]
        out.append(Table("Normalised: 0 is a random policy, 1 the reference", rows))
    if comparison.differing:
        labels = [method.label for method in comparison.methods]
        settings = [
            {"environment": row.environment, "setting": row.setting, **dict(zip(labels, row.values, strict=True))}
            for row in comparison.differing
        ]
        out.append(Table("Settings that differ", settings))
    return out


def _summary_row(summary: Summary) -> dict[str, str]:
    s = summary
    return {
        "method": s.method,
        "seeds": f"{s.num_seeds}" + (f", {s.failed} failed" if s.failed else ""),
        "IQM [95 % interval]": f"{_number(s.iqm)} {_interval(s.low, s.high)}",
        "mean": _number(s.mean),
        "median": _number(s.median),
        "min": _number(s.min),
        "max": _number(s.max),
    }


def _contrast_row(contrast: Contrast) -> dict[str, str]:
    c = contrast
    return {
        "method": c.method,
        "IQM difference [95 % interval]": f"{_number(c.difference)} {_interval(c.low, c.high)}",
        "p (Holm)": _p(c.p_holm, ""),
        "P(better) [95 % interval]": f"{c.probability:.2f} {_interval(c.probability_low, c.probability_high, 2)}",
        "seeds paired": "yes" if c.paired else "no",
        "seeds needed": "-" if c.seeds_needed is None else f"{c.seeds_needed:,}",
        "verdict": c.verdict,
    }


def to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain dictionaries, lists, text and numbers; runs as their folders."""
    parts = {field.name: getattr(comparison, field.name) for field in dataclasses.fields(comparison)}
    parts["methods"] = [
        {"label": method.label, "runs": {name: run.path and str(run.path) for name, run in method.runs.items()}}
        for method in comparison.methods
    ]
    return {name: _plain(x) for name, x in parts.items()}


def _plain(x: Any) -> Any:
    if dataclasses.is_dataclass(x):
        return {field.name: _plain(getattr(x, field.name)) for field in dataclasses.fields(x)}
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return _plain(x._asdict())
    if isinstance(x, dict):
        return {name: _plain(y) for name, y in x.items()}
    if isinstance(x, np.ndarray):
        return x.tolist()
    return [_plain(y) for y in x] if isinstance(x, tuple | list) else x


def _number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 10_000 else f"{x + 0:.4g}"  # + 0: -0 is 0


def _interval(low: float, high: float, decimals: int | None = None) -> str:
    """Both ends, with so many decimals if given; in words where a single seed has no interval."""
    if not math.isfinite(low + high):
        return "[undefined]"
    return f"[{', '.join(_number(x) if decimals is None else f'{x:.{decimals}f}' for x in (low, high))}]"


def _p(p: float, name: str = "p") -> str:
    """'p = .03', or 'p < .001'; without the name '.03' or '< .001'."""
    if p < 0.001:
        return f"{name} < .001".strip()
    return f"{name} = ".lstrip(" =") + f"{p:.2g}".lstrip("0")


@dataclasses.dataclass(frozen=True)
class SelfTest:
    """How often a run's seeds, split at random into two halves, are said to differ."""

    num_seeds: int
    tied: int
    """seeds whose score is another's too"""
    splits: int
    shift: float
    """what was added to one half, in standard deviations of the scores"""
    rejected: float
    """share of splits with p < .05: without a shift about .05, if the test is right"""
    excluded: float
    """share of splits whose bootstrap interval of the difference does not hold 0: the interval is approximate"""
    usable: bool
    """whether these scores can come below .05 at all"""
    sentence: str


def selftest(run: Run, splits: int = 1000, shift: float = 0.0) -> SelfTest:
    """Check the comparison on one run: compare a random half of its seeds with the other half, `splits` times.

    Both halves are of the same training, so p < .05 must come out in 5 % of the splits, less what the number of seeds
    rounds off, whatever the scores are: that checks the comparison, not the run. With `shift`, that many standard
    deviations are added to one half: then it should be found. Raises UsageError for a run with batched settings or
    fewer than four seeds.
    """
    if run.batched:
        raise UsageError(f"the run has several settings: choose one, as {run.path or 'PATH'}#0")
    scores = stats.failed_as_worst([seeds_of([run])[0].final])[0]
    if len(scores) < 4:
        raise UsageError(f"the run has {len(scores)} seeds; two halves to compare take four at least")
    rng, half = np.random.default_rng(0), len(scores) // 2
    tests, outside = [], []
    for _ in range(splits):
        order = rng.permutation(scores)
        one, other = order[:half] + shift * scores.std(), order[half : 2 * half]
        tests.append(stats.permutation_test([one], [other], permutations=2000))
        difference = stats.iqm_difference([one], [other])
        outside.append(not difference.low <= 0 <= difference.high)
    rejected = float(np.mean([test.p < stats.ALPHA for test in tests]))
    tied = sum(n for n in Counter(scores.tolist()).values() if n > 1)
    usable = any(test.smallest < stats.ALPHA for test in tests)
    return SelfTest(
        num_seeds=len(scores),
        tied=tied,
        splits=splits,
        shift=shift,
        rejected=rejected,
        excluded=float(np.mean(outside)),
        usable=usable,
        sentence=_selftest_in_words(len(scores), half, tied, splits, shift, rejected, float(np.mean(outside)), usable),
    )


def _selftest_in_words(
    seeds: int, half: int, tied: int, splits: int, shift: float, rejected: float, excluded: float, usable: bool
) -> str:
    if not usable:
        why = f"{tied} of its {seeds} seeds are tied" if tied > half else f"{half} against {half} seeds are too few"
        return f"this run cannot tell whether the comparison is right: {why}"
    what = f"{half} of its {seeds} seeds against {half} others"
    moved = f", moved by {shift:g} standard deviations," if shift else ""
    right = "" if shift else ", where 5 % is right"
    p = f"p < .05 in {100 * rejected:.3g} % of {splits:,} random splits{right}"
    return f"{what}{moved}: {p}; the interval of the difference leaves 0 out in {100 * excluded:.3g} %"
