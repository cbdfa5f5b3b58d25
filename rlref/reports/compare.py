"""Comparing runs: is one method better than another, by how much, and could it be chance?

    from rlref.reports.compare import compare
    from rlref.reports.methods import read

    compare(read(["runs/ppo", "runs/dqn"])).sentences       or: rlref compare runs/ppo runs/dqn

A method is a label and a run per environment; the first is the baseline. Two quantities of each seed are compared: its
final score (`Run.scores`), and its mean score over training, that is the area under its learning curve.

One method is called better than another if a permutation test of the difference of their IQMs gives p < .05 and the
difference's bootstrap interval excludes 0. The test is exact for any number of seeds, but its null hypothesis is that
both distributions of scores are equal: with 16 normal scores each, equal IQMs, and five times the spread in one, it
alone rejects in a quarter of cases. The interval allows for unequal spreads, but is too narrow with few seeds. Both
together erred in at most 8 % of cases with 5 to 32 seeds, whether the distributions were equal or not.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlref import stats
from rlref.envs.ids import split_pool
from rlref.errors import UsageError
from rlref.health import findings
from rlref.reports import reference
from rlref.reports.comparison_result import (
    QUANTITIES,
    Comparison,
    Contrast,
    Difference,
    Profile,
    QuantityResult,
    Scale,
    Summary,
)
from rlref.reports.methods import Method, about_of
from rlref.reports.tables import contrast_in_words, difference_in_words
from rlref.runs.run import Run

Array = np.ndarray


GRID = 1001  # points of the grid for the area under a learning curve
THRESHOLDS = 101  # of a performance profile


def compare(methods: Sequence[Method], references: Mapping[str, float] | None = None) -> Comparison:
    """Compare every method with the first, on each environment, and on all of them together if there are several.

    `references`: environment -> score that counts as 1 when scores are normalised, overriding published ones. Methods
    are compared seed by seed ("paired") if they have the same seed ids on every environment, and enough of them (10,
    see `stats.least_seeds`) for swaps of labels within pairs to give p < .05. Holm's correction is for the number of
    methods; the tests on several environments and on two quantities are not corrected for. Raises UsageError if the
    methods do not cover the same environments, there is no score to compare or to normalise by, or a reference is of
    another environment.
    """
    environments = _environments(methods)
    labels = [method.label for method in methods]
    seeds = {name: seeds_of([method.runs[name] for method in methods]) for name in environments}
    several = len(environments) > 1
    references = references or {}
    if unknown := references.keys() - {*environments}:
        compared = ", ".join(environments)
        raise UsageError(f"a reference score is given of {min(unknown)}, which is not compared; it is of {compared}")
    scaled = [_scale(name, methods, references) for name in environments] if several else []
    scales = [scale for scale, _ in scaled]
    results = [
        _result(name, quantity, labels, [[one] for one in per_method])
        for name, per_method in seeds.items()
        for quantity in QUANTITIES
    ]
    differing = [row for name in environments for row in _differing(name, methods)]
    warnings = [text for name, each in seeds.items() for text in _warnings(name, methods, each)]
    if changed := sorted({row.environment for row in differing if row.setting.startswith("env_params.")}):
        warnings.append(f"the parameters of {', '.join(changed)} differ: the methods had other tasks there")
    warnings += [text for _, text in scaled if text]
    if references and not several:
        warnings.append("the reference score changes nothing: scores are normalised over several environments alone")
    overall = []
    columns = [list(column) for column in zip(*seeds.values(), strict=True)]
    if several and (uneven := _why_not_pooled(labels, environments, columns)):
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
        sentences=(*verdicts, difference_in_words(differing)),
    )


def _environments(methods: Sequence[Method]) -> list[str]:
    """The environments of the methods. Raises UsageError if they differ, or the methods cannot be compared."""
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
    """One method on one environment: the scores of its trained seeds; NaN where one failed."""

    ids: tuple[int, ...]
    final: Array
    """`[S]`"""
    area: Array
    """`[S]`"""

    @property
    def failed(self) -> int:
        return int((~np.isfinite(self.final)).sum())


def seeds_of(compared: Sequence[Run]) -> list[Seeds]:
    """The scores of the seeds of each run on one environment.

    A seed has failed if it became non-finite and has had no score since, or never had one. Rows that an interrupted run
    never began are left out. The area is the mean score over environment steps, by the trapezoidal rule on a grid from
    0 to the end of the shortest training of all seeds, so that all means are over the same steps. Before its first
    finished episode a seed has no score, and its first score is used.
    """
    begun = [np.isfinite(run.metrics["env_steps"]).any(axis=1) for run in compared]
    if not all(one.any() for one in begun):
        raise UsageError("a run has no seed that was trained at all: there is nothing to compare")
    end = min(stats.last(run.metrics["env_steps"])[rows].min() for run, rows in zip(compared, begun, strict=True))
    out = []
    for run, rows in zip(compared, begun, strict=True):
        final = run.scores.astype(np.float64)
        area = np.where(np.isnan(final), np.nan, _areas(run, float(end)))
        ids = tuple(int(seed) for seed, trained in zip(run.seeds, rows, strict=True) if trained)
        out.append(Seeds(ids, final[rows], area[rows]))
    return out


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


def _scale(environment: str, methods: Sequence[Method], references: Mapping[str, float]) -> tuple[Scale, str]:
    """How scores are normalised, and what speaks against that; "" where nothing does."""
    if any(about_of(method.runs[environment]).get("env") for method in methods):
        raise UsageError(
            f"{environment} was given from Python, so a random policy cannot be tried in it: compare on it alone"
        )
    score, source = reference.reference_of(environment, references)
    values = about_of(methods[0].runs[environment]).get("env_params_values", {})
    random = reference.random_return(environment, values)
    if score <= random:
        raise UsageError(f"the reference score of {environment} is {score:g}, not above a random policy's {random:.4g}")
    scale = Scale(environment, random, score, source)
    if environment in references or not (changed := reference.changed_parameters(environment, values)):
        return scale, ""
    here = ", ".join(f"{name} {_shown(x)}" for name, x in changed.items())
    return scale, (
        f"the published score of {environment}, {score:g}, is of its default parameters, and here it has {here}: give "
        f"one, as --reference {environment}=SCORE"
    )


def _normalised(seeds: Seeds, scale: Scale) -> Seeds:
    span = scale.reference - scale.random
    return Seeds(seeds.ids, (seeds.final - scale.random) / span, (seeds.area - scale.random) / span)


def _why_not_pooled(labels: Sequence[str], environments: Sequence[str], columns: Sequence[Sequence[Seeds]]) -> str:
    """Why scores cannot be pooled over environments; "" where they can."""
    for label, column in zip(labels, columns, strict=True):
        numbers = [len(one.ids) for one in column]
        if len(set(numbers)) > 1:
            each = ", ".join(f"{n} on {name}" for n, name in zip(numbers, environments, strict=True))
            return f"nothing is said over all environments: {label} has {each}, which would count unequally"
    return ""


def _result(
    environment: str | None, quantity: str, labels: Sequence[str], columns: Sequence[Sequence[Seeds]]
) -> QuantityResult:
    """One quantity of all methods; a column holds a method's seeds on each environment."""
    raw = [[getattr(one, quantity) for one in column] for column in columns]
    per_environment = [stats.failed_as_worst(row) for row in zip(*raw, strict=True)]
    strata = [list(column) for column in zip(*per_environment, strict=True)]
    thresholds = _thresholds(np.concatenate([x for column in strata for x in column]))
    return QuantityResult(
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
        out.append(dataclasses.replace(contrast, sentence=contrast_in_words(contrast, method, baseline, len(tests))))
    return tuple(out)


def _paired(method: Sequence[Seeds], baseline: Sequence[Seeds]) -> bool:
    """Whether seeds can be compared as pairs; the scores have no influence on that."""
    least = stats.least_seeds(paired=True)
    return all(one.ids == other.ids and len(one.ids) >= least for one, other in zip(method, baseline, strict=True))


def _verdict(difference: stats.Estimate, p: float, least: float, seeds: int) -> str:
    """`seeds`: the number of the method with fewer; with too few no interval can be trusted, whatever p is."""
    if seeds < stats.least_seeds() or least >= stats.ALPHA:
        return "undecidable"
    if p < stats.ALPHA and (difference.low > 0 or difference.high < 0):
        return "better" if difference.value > 0 else "worse"
    return "not shown"


def _warnings(environment: str, methods: Sequence[Method], seeds: Sequence[Seeds]) -> list[str]:
    """Reasons to read the results on one environment with caution."""
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
    if len({settings["agent"] for settings in each}) > 1:  # different agents: compare only settings that all have
        names = {name: None for name in names if name != "agent's file" and all(name in settings for settings in each)}
    elif not all("agent's file" in settings for settings in each):
        names.pop("agent's file", None)  # a run without a folder has none
    rows = [Difference(environment, name, tuple(_shown(x.get(name)) for x in each)) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]


def _settings(run: Run) -> dict[str, Any]:
    about = about_of(run)
    settings = {"agent": run.agent, **{name: x for name, x in run.config.items() if name != "env_id"}}
    starts, _ = split_pool(run.config.get("env_id", ""))
    settings["reset"] = f"pool of {starts}" if starts else "every"
    if about.get("source_sha256"):
        settings["agent's file"] = about["source_sha256"][:8]
    return settings | {f"env_params.{name}": x for name, x in about.get("env_params_values", {}).items()}


def _shown(setting: Any) -> str:
    """A setting in few characters; "-" for one that is not there."""
    if setting is None:
        return "-"
    return f"{setting:g}" if isinstance(setting, float) else str(setting)
