"""The figures of a report: curves over environment steps, spreads over training, final scores, maps, profiles.

A figure is drawn once, in the colours for print. `inline` gives it as SVG for a page, where the style sheet chooses the
colours; `save` writes it as files. Letters: `S` seeds, `U` updates, `P` updates that are drawn, `B` bins of updates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlref import stats
from rlref.reports.captions import (
    defined_as,
    distinct,
    last_of,
    number,
    path_in_words,
    says_nothing,
    scores_in_words,
    sentence_case,
    slug,
)
from rlref.reports.comparison_result import Profile
from rlref.reports.curve_statistics import POINTS, drawn_updates, evenly, extremes, interval_along, iqm_along, is_sparse
from rlref.reports.figure_data import Group, Mark, Picture
from rlref.reports.figure_parts import (
    PAPER,
    SERIES,
    WIDTH,
    add_legend,
    canvas,
    colour,
    dash,
    draw_marks,
    label_axes,
    line,
    plain_numbers,
    rows_canvas,
    set_y_scale,
)

PARTS = ("mean", "std", "min", "max")
DRAWN_SEEDS = 64


def curve(name: str, groups: Sequence[Group], marks: Sequence[Mark] = ()) -> Picture | None:
    """A metric over environment steps: IQM and its interval per group, and every seed where there is one group.

    None where no group has a defined value of it.
    """
    shown = [i for i, g in enumerate(groups) if name in g.metrics and np.isfinite(g.values(name)).any()]
    if not shown:
        return None
    every = distinct([g.label for g in groups], 60)
    labels = [every[i] for i in shown] if len(groups) > 1 else []
    figure, axes = canvas(labels)
    thick: list[Any] = []
    for i in shown:
        x, steps = groups[i].values(name), groups[i].mean_steps
        updates = drawn_updates(x)
        if len(groups) == 1 and len(x) > 1:
            thin_lines(axes, groups[i], x, updates)
        axes.fill_between(steps[updates], *interval_along(x[:, updates]), color=colour(i), alpha=0.25, linewidth=0)
        thick += axes.plot(steps[updates], iqm_along(x[:, updates]), **line(i, len(updates)))
        thick[-1].set_path_effects([withStroke(linewidth=3, foreground=PAPER)])  # stands out from the thin ones
    if labels:
        add_legend(figure, thick, labels)
    cut = set_y_scale(axes, name, np.concatenate([groups[i].values(name).ravel() for i in shown]))
    label_axes(axes, name, groups[shown[0]])
    draw_marks(axes, marks, groups[shown[0]].mean_steps)
    drawn = [groups[i] for i in shown]
    words = " ".join(x for x in (defined_as(name, drawn), cut, says_nothing(name, drawn)) if x)
    alt = " ".join(path_in_words(name, groups[i], len(groups) > 1) for i in shown)
    return Picture(f"plot-{slug(name)}", name, words, alt, figure)


def thin_lines(axes: Axes, group: Group, x: np.ndarray, updates: np.ndarray) -> None:
    """Every seed as a thin line; only some of them if there are very many."""
    rows = evenly(group.scores, DRAWN_SEEDS)
    everything = x.shape[1] <= POINTS or is_sparse(x)
    steps, x = group.steps[rows], x[rows]
    at = np.tile(updates, (len(rows), 1)) if everything else extremes(x)
    gap = np.full((len(rows), 1), np.nan)  # between one seed and the next
    points = [np.concatenate([np.take_along_axis(y, at, axis=1), gap], axis=1).ravel() for y in (steps, x)]
    marker = "." if at.shape[1] == 1 else None
    faint = np.clip(4 / len(rows), 0.28, 0.6)  # many must not hide the thick line
    axes.plot(*points, color=SERIES[0], alpha=faint, linewidth=0.5, marker=marker, zorder=1.5)


def distribution(what: str, groups: Sequence[Group], marks: Sequence[Mark] = ()) -> Picture | None:
    """`what`_mean, _std, _min and _max over environment steps; None where they are undefined or missing.

    For several groups only the means are drawn.
    """
    name = f"spread-{slug(what)}"
    if len(groups) > 1:
        picture = curve(f"{what}_mean", groups, marks)
        return picture and picture._replace(name=name, title=what)
    group = groups[0]
    if any(f"{what}_{part}" not in group.metrics for part in PARTS):
        return None
    mean, std, low, high = (group.values(f"{what}_{part}") for part in PARTS)
    if not np.isfinite(mean).any():
        return None
    labels = ["mean ± std", "mean", "maximum", "minimum"]
    figure, axes = canvas(labels)
    updates = drawn_updates(mean)
    at, middle, half = group.mean_steps[updates], iqm_along(mean[:, updates]), iqm_along(std[:, updates])
    highest, lowest = (f.reduceat(f.reduce(x), updates) for f, x in ((np.fmax, high), (np.fmin, low)))
    handles: list[Any] = [axes.fill_between(at, middle - half, middle + half, color=colour(0), alpha=0.25, linewidth=0)]
    for i, y in enumerate((middle, highest, lowest)):
        handles += axes.plot(at, y, **line(i, len(updates)) | {"linewidth": 0.9 if i else 1.6})
    add_legend(figure, handles, labels)
    set_y_scale(axes, what, np.concatenate([low.ravel(), high.ravel()]))
    label_axes(axes, f"{what}_mean", group, what)
    draw_marks(axes, marks, group.mean_steps)
    meaning = sentence_case(defined_as(f"{what}_mean", groups).removeprefix("Mean of "))
    words = f"{meaning} Mean and standard deviation are IQMs over seeds; minimum and maximum are those of all seeds."
    mean_end, std_end, low_end, high_end = (number(last_of(y)) for y in (middle, half, lowest, highest))
    alt = f"{what} at the end: mean {mean_end}, standard deviation {std_end}, minimum {low_end}, maximum {high_end}."
    return Picture(name, what, words, alt, figure)


def final_scores(groups: Sequence[Group]) -> Picture | None:
    """Every seed's score: one group from the worst to the best, or a row per group. None if undefined."""
    if not any(np.isfinite(g.scores).any() for g in groups):
        return None
    figure, axes = rows_canvas(distinct([g.label for g in groups], 24)) if len(groups) > 1 else canvas()
    for i, group in enumerate(groups):
        scores = np.sort(group.scores[np.isfinite(group.scores)])
        n = len(scores)
        inner = (np.arange(n) >= n // 4) & (np.arange(n) < n - n // 4)
        middle, interval = stats.iqm(scores), stats.iqm_interval(scores)
        circles: dict[str, Any] = {"color": colour(i), "markersize": 4}
        if len(groups) > 1:
            at, span = i + np.linspace(-0.25, 0.25, n + 2)[1:-1], (i - 0.35, i + 0.35)
            axes.fill_betweenx(span, *interval, color=colour(i), alpha=0.25, linewidth=0)
            axes.vlines(middle, *span, color=colour(i), linewidth=1.4)
            x, y = scores, at
        else:
            at, span = np.arange(1.0, n + 1), (0.5, n + 0.5)
            axes.fill_between(span, *interval, color=colour(i), alpha=0.25, linewidth=0)
            axes.hlines(middle, *span, color=colour(i), linewidth=1.4)
            x, y = at, scores
        axes.plot(x[inner], y[inner], "o", **circles)
        axes.plot(x[~inner], y[~inner], "o", fillstyle="none", **circles)
    names = {g.score for g in groups if g.seeds}
    score = names.pop() if len(names) == 1 else "score"
    if len(groups) == 1:
        axes.set_xlabel("seeds, from the worst to the best")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(score)
        axes.yaxis.set_major_formatter(plain_numbers())
    else:
        axes.set_xlabel(score)
        axes.xaxis.set_major_formatter(plain_numbers())
    labels = [f"{g.label} ({g.score})" if score == "score" else g.label for g in groups]
    told = [
        scores_in_words(g, label if len(groups) > 1 else "") for g, label in zip(groups, labels, strict=True) if g.seeds
    ]
    words = "A circle is a seed's score at the end; filled: the middle half, whose mean is the line, the IQM. "
    return Picture("final-scores", "Final scores", words + " ".join(told), " ".join(told), figure)


def profile(environment: str, profiles: Sequence[Profile]) -> Picture:
    """Performance profiles (Agarwal et al. 2021, section 4.3): the share of seeds above each score, per method."""
    labels = distinct([one.method for one in profiles], 60)
    figure, axes = canvas(labels)
    handles: list[Any] = []
    told = []
    for i, one in enumerate(profiles):
        axes.fill_between(one.thresholds, one.low, one.high, color=colour(i), alpha=0.2, linewidth=0, step="mid")
        handles += axes.step(one.thresholds, one.share, where="mid", **line(i, POINTS))
        median = one.thresholds[np.flatnonzero(one.share >= 0.5)[-1]]
        told.append(f"half of the seeds of {one.method} reach {number(median)}")
    add_legend(figure, handles, labels)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("share of seeds above")
    axes.set_xlabel("final score" if environment else "normalised final score")
    axes.xaxis.set_major_formatter(plain_numbers())
    name = f"profile-{slug(environment)}" if environment else "profiles"
    where = environment or "all environments"
    words = "Share of seeds with a higher final score than x, with a pointwise 95 % bootstrap band. Higher is better."
    return Picture(name, f"Performance profile: {where}", words, sentence_case("; ".join(told)) + ".", figure)


class Visits(NamedTuple):
    """Where a trained seed goes, in `N` steps."""

    obs: np.ndarray
    """`[N, D]`"""
    value: np.ndarray | None
    """V, or the largest Q, `[N]`; None for an agent without values"""
    discrete: bool
    value_name: str


def maps(visits: Visits) -> list[Picture]:
    """How often each part of the observation space is visited, and the mean value there; every pair of dimensions."""
    dims = visits.obs.shape[1]
    if dims == 1:
        return [histogram_of(visits)]
    pairs = [(i, j) for i in range(dims) for j in range(i + 1, dims)]
    return [picture for pair in pairs for picture in maps_of_pair(visits, *pair)]


def maps_of_pair(visits: Visits, i: int, j: int) -> list[Picture]:
    """The maps over observations `i` and `j`."""
    x, y = visits.obs[:, i], visits.obs[:, j]
    count, x_edges, y_edges = np.histogram2d(x, y, bins=40)
    extent = (x_edges[0], x_edges[-1], y_edges[0], y_edges[-1])
    shares = np.where(count > 0, count / len(x), np.nan)
    planes = [("visits", "Where it goes", "share of steps", shares)]
    if visits.value is not None:
        total, *_ = np.histogram2d(x, y, bins=(x_edges, y_edges), weights=visits.value)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        planes.append(("value", f"What it expects: {visits.value_name}", f"mean of {visits.value_name}", mean))
    pictures = []
    for name, title, label, plane in planes:
        figure, axes = canvas()
        figure.subplots_adjust(right=0.95)
        norm = LogNorm() if name == "visits" and np.nanmax(plane) > 10 * np.nanmin(plane) else None
        drawn = axes.imshow(plane.T, origin="lower", extent=extent, aspect="auto", interpolation="none", norm=norm)
        bar = figure.colorbar(drawn, ax=axes, label=label)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4g}"))
        bar.ax.minorticks_off()
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"observation {i}")
        axes.set_ylabel(f"observation {j}")
        ranges = (f"observation {k} from {number(z.min())} to {number(z.max())}" for k, z in ((i, x), (j, y)))
        shades = f"{label} from {number(np.nanmin(plane))} to {number(np.nanmax(plane))}"
        alt = f"{title}: {', '.join(ranges)}; {shades}."
        visited = f"{np.mean(count > 0):.0%} of {count.size:,} cells are visited; the others are left empty."
        words = f"{sentence_case(label)}. {visited}"
        pictures.append(Picture(f"map-{name}-{i}-{j}", title, words, alt, figure))
    return pictures


def histogram_of(visits: Visits) -> Picture:
    """Visits and values over an observation of one number."""
    x = visits.obs[:, 0]
    edges = np.arange(np.floor(x.min()), x.max() + 1.5) - 0.5 if visits.discrete else np.histogram_bin_edges(x, 40)
    count, _ = np.histogram(x, edges)
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    labels = ["share of steps", f"mean of {visits.value_name}"] if visits.value is not None else []
    figure, axes = canvas(labels)
    bars = axes.bar(middle, count / len(x), width=0.9 * width, color=colour(0), alpha=0.6)
    axes.set_xlabel("observation")
    axes.set_ylabel("share of steps")
    told = f"Observation from {number(x.min())} to {number(x.max())}, most often about {number(middle[count.argmax()])}"
    if visits.value is not None:
        total, _ = np.histogram(x, edges, weights=visits.value)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        other = axes.twinx()
        lines = other.plot(middle, mean, color=colour(1), linestyle=dash(1), marker="o", markersize=3)
        add_legend(figure, [bars, *lines], labels)
        other.grid(visible=False)
        other.set_ylabel(f"mean of {visits.value_name}")
        figure.subplots_adjust(right=1 - 0.72 / WIDTH)
        told += f"; mean of {visits.value_name} from {number(np.nanmin(mean))} to {number(np.nanmax(mean))}"
    return Picture("map-visits", "Where it goes", "Bars: share of steps.", f"{told}.", figure)
