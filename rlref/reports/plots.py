"""The figures of a report: curves over environment steps, spreads over training, final scores, maps, profiles.

A figure is drawn once, in the colours of paper. `inline` gives it as SVG for a page, where the style sheet chooses the
colours; `save` writes it as files. Letters: `S` seeds, `U` updates, `P` updates that are drawn, `B` bins of updates.
"""

import contextlib
import html
import io
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, ScalarFormatter, SymmetricalLogLocator

from rlref import metrics as metric_table
from rlref import stats
from rlref.contract import NAMES
from rlref.errors import UsageError
from rlref.health import findings
from rlref.health.series import kind_of
from rlref.reports import compare

PAPER, INK, MUTED, GRID, MARK = "#fefefe", "#1f2328", "#59636e", "#d8dee4", "#b5460f"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")  # after Okabe & Ito 2008
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
VARIABLES = {PAPER: "--paper", INK: "--ink", MUTED: "--muted", GRID: "--grid", MARK: "--mark"}
VARIABLES |= {colour: f"--series-{i}" for i, colour in enumerate(SERIES)}
STYLE: Any = {
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "rlref",  # the same run gives the same bytes
    "text.color": INK,
    "text.parse_math": False,  # labels are other people's words
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}
WIDTH, HEIGHT = 5.3, 3.1  # inches; narrow, so that the letters can be read on a phone
PARTS = ("mean", "std", "min", "max")
POINTS = 200  # updates at most at which the IQM is drawn
BINS = 100  # at most, of a seed's line, which goes through the lowest and the highest value of each
LINE_BINS = 5000  # of all seeds' lines together: that keeps the page small
DRAWN_SEEDS = 64
RESAMPLES = 400  # at most, of a bootstrap; a hundred at least
RESAMPLED = 50_000  # seeds of all resamples together: that keeps it fast
LONGEST_MARK = 16  # letters of a label over marks
MOST_DECADES = 1e5  # on a logarithmic axis
HUGE = 1e30  # what is beyond is drawn there: matplotlib's margins overflow


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Figures are made and written in this context."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A page's letters come from the reader's fonts, which have those that matplotlib's lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


class Group(NamedTuple):
    """Seeds that are drawn together: a run, or one of its settings. Arrays are `[S, U]`."""

    label: str
    metrics: dict[str, np.ndarray]
    seeds: list[int]

    @property
    def score(self) -> str:
        """The metric that is a seed's score, as in `runs.Run.score`."""
        return "mean_policy_return" if "mean_policy_return" in self.metrics else "return_mean"

    @property
    def scores(self) -> np.ndarray:
        """`[S]`; NaN where undefined."""
        return stats.last(self.values(self.score)) if self.score in self.metrics else np.full(len(self.seeds), np.nan)

    def values(self, name: str) -> np.ndarray:
        """A metric `[S, U]` to draw: infinities are undefined."""
        x = np.asarray(self.metrics[name], np.float64)
        return np.clip(np.where(np.isfinite(x), x, np.nan), -HUGE, HUGE)

    @property
    def steps(self) -> np.ndarray:
        """Environment steps `[S, U]`; the number of the update, from 1, for metrics without them."""
        if "env_steps" in self.metrics:
            return self.values("env_steps")
        seeds, updates = next(iter(self.metrics.values())).shape
        return np.tile(np.arange(1.0, updates + 1), (seeds, 1))

    @property
    def mean_steps(self) -> np.ndarray:
        """Environment steps of each update `[U]`, the mean over seeds: those of CEM differ."""
        steps = self.steps
        count = np.isfinite(steps).sum(axis=0)
        return np.where(count > 0, np.nansum(steps, axis=0) / np.maximum(count, 1), np.nan)

    def constant(self, name: str) -> float | None:
        """The one value that a metric has, in all seeds at all updates where it is defined; None where it varies."""
        x = self.values(name)[np.isfinite(self.values(name))]
        return float(x[0]) if len(x) and np.ptp(x) == 0 else None


class Mark(NamedTuple):
    """The onset of a finding: a vertical line with its number."""

    number: str
    update: int
    text: str


class Picture(NamedTuple):
    """A figure with its words."""

    name: str
    """of the file, and of the element in the page"""
    title: str
    caption: str
    alt: str
    """what it shows, in numbers"""
    figure: Figure


# --- Statistics along a training.


def iqm_along(x: np.ndarray) -> np.ndarray:
    """`stats.iqm` of every column of `[..., S, P]`: `[..., P]`."""
    ordered = np.sort(x, axis=-2)  # NaN last
    count = np.isfinite(x).sum(axis=-2, keepdims=True)
    cut = count // 4
    rank = np.arange(x.shape[-2])[:, None]
    middle = (rank >= cut) & (rank < count - cut)
    total = np.where(middle, ordered, 0).sum(axis=-2)
    kept = middle.sum(axis=-2)
    return np.where(kept > 0, total / np.maximum(kept, 1), np.nan)


def interval_along(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap interval over seeds of every column's IQM: two `[P]`; NaN for fewer than two seeds."""
    low = np.full(x.shape[1], np.nan)
    high = low.copy()
    defined = np.isfinite(x).sum(axis=0) >= 2
    if defined.any():
        resamples = int(np.clip(RESAMPLED // len(x), 100, RESAMPLES))
        chosen = np.random.default_rng(0).integers(len(x), size=(resamples, len(x)))
        means = np.concatenate([iqm_along(x[:, defined][part]) for part in np.array_split(chosen, 20)])
        low[defined], high[defined] = np.nanquantile(means, (0.025, 0.975), axis=0)
    return low, high


def drawn_updates(x: np.ndarray) -> np.ndarray:
    """The updates at which `x` `[S, U]` is drawn, `[P]`: at most POINTS, evenly spaced, the first and the last of them.

    Of a metric that is defined at some updates alone, such as an evaluation's, these.
    """
    defined = np.flatnonzero(np.isfinite(x).any(axis=0))
    updates = defined if is_sparse(x) else np.arange(x.shape[1])
    return updates[np.unique(np.linspace(0, len(updates) - 1, min(len(updates), POINTS)).round().astype(int))]


def is_sparse(x: np.ndarray) -> bool:
    """Whether `x` `[S, U]` is defined at several updates, and no two of them are neighbours."""
    defined = np.flatnonzero(np.isfinite(x).any(axis=0))
    return len(defined) > 1 and bool((np.diff(defined) > 1).all())


def extremes(x: np.ndarray) -> np.ndarray:
    """The updates `[S, 2 B]` of the lowest and the highest value of each bin, in order of time."""
    found = []
    for part in np.array_split(np.arange(x.shape[1]), min(BINS, LINE_BINS // len(x), x.shape[1])):
        values = x[:, part]
        lowest = np.where(np.isnan(values), np.inf, values).argmin(axis=1)
        highest = np.where(np.isnan(values), -np.inf, values).argmax(axis=1)
        found += [part[np.minimum(lowest, highest)], part[np.maximum(lowest, highest)]]
    return np.stack(found, axis=1)


def evenly(scores: np.ndarray, most: int) -> np.ndarray:
    """At most `most` rows, evenly from the lowest to the highest score; of more those alone that have a score."""
    if len(scores) <= most:
        return np.arange(len(scores))
    order = np.argsort(scores, kind="stable")
    if np.isfinite(scores).any():
        order = order[np.isfinite(scores[order])]
    return np.sort(order[np.unique(np.linspace(0, len(order) - 1, min(len(order), most)).round().astype(int))])


# --- Figures.


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
    cut = finish(axes, name, np.concatenate([groups[i].values(name).ravel() for i in shown]))
    label_axes(axes, name, groups[shown[0]])
    draw_marks(axes, marks, groups[shown[0]].mean_steps)
    words = " ".join(x for x in (defined_as(name, [groups[i] for i in shown]), cut) if x)
    alt = " ".join(path_in_words(name, groups[i], len(groups) > 1) for i in shown)
    return Picture(f"plot-{slug(name)}", name, words, alt, figure)


def thin_lines(axes: Axes, group: Group, x: np.ndarray, updates: np.ndarray) -> None:
    """Every seed as a thin line; of very many some."""
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

    Of several groups the means alone.
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
    finish(axes, what, np.concatenate([low.ravel(), high.ravel()]))
    label_axes(axes, f"{what}_mean", group, what)
    draw_marks(axes, marks, group.mean_steps)
    meaning = sentence_case(defined_as(f"{what}_mean", groups).removeprefix("Mean of "))
    words = f"{meaning} Mean and standard deviation are IQMs over seeds; minimum and maximum are those of all seeds."
    mean_end, std_end, low_end, high_end = (number(last_of(y)) for y in (middle, half, lowest, highest))
    alt = f"{what} at the end: mean {mean_end}, standard deviation {std_end}, minimum {low_end}, maximum {high_end}."
    return Picture(name, what, words, alt, figure)


def final_scores(groups: Sequence[Group]) -> Picture | None:
    """Every seed's score: of one group from the worst to the best, of several a row each. None if undefined."""
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


def profile(environment: str, profiles: Sequence[compare.Profile]) -> Picture:
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


# --- Parts of a figure.


def canvas(labels: Sequence[str] = ()) -> tuple[Figure, Axes]:
    """An empty figure with room for a legend of `labels` under it, which `add_legend` puts there."""
    under = 0.2 * -(-len(labels) // columns_of(labels))
    height = HEIGHT + under
    figure = Figure((WIDTH, height))
    axes = figure.add_axes((0.72 / WIDTH, (0.5 + under) / height, 1 - 0.9 / WIDTH, 1 - (0.74 + under) / height))
    axes.set_axisbelow(True)
    return figure, axes


def rows_canvas(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """An empty figure with a row for each label, the first on top."""
    left, height = 0.25 + 0.075 * max(map(len, labels)), max(HEIGHT, 1 + 0.3 * len(labels))
    figure = Figure((WIDTH, height))
    axes = figure.add_axes((left / WIDTH, 0.5 / height, 1 - (left + 0.18) / WIDTH, 1 - 0.74 / height))
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    return figure, axes


def columns_of(labels: Sequence[str]) -> int:
    """How many labels stand beside each other."""
    return max(1, min(len(labels), 4, 80 // (max(map(len, labels), default=1) + 8)))


def colour(i: int) -> str:
    return SERIES[i % len(SERIES)]


def dash(i: int) -> Any:
    return DASHES[i % len(DASHES)]


def line(i: int, points: int) -> dict[str, Any]:
    """How group `i` is drawn: with dots where there are few points."""
    return {"color": colour(i), "linestyle": dash(i), "marker": "o" if points <= 30 else None, "markersize": 3}


def label_axes(axes: Axes, name: str, group: Group, label: str = "") -> None:
    """What the axes show, with units."""
    one = metric_table.BY_NAME.get(name)
    axes.set_ylabel(shortened(label or name, 36) + (f", {one.unit}" if one and one.unit != "1" else ""))
    axes.set_xlabel("environment steps" if "env_steps" in group.metrics else "update")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def finish(axes: Axes, name: str, values: np.ndarray) -> str:
    """Choose the scale of the y axis for what is drawn; returns a sentence on what lies outside, or on the scale."""
    values = values[np.isfinite(values)]
    axes.yaxis.set_major_formatter(plain_numbers())
    if not len(values):
        return ""
    if name == "explained_variance" and values.min() < -1:
        axes.set_ylim(-1.05, 1.05)
        return f"Values below -1 are outside; the lowest is {number(values.min())}."
    largest = np.abs(values).max()
    usual = max(float(np.median(np.abs(values[values != 0]))) if largest else 1.0, largest / MOST_DECADES)
    if largest > 1000 * usual:
        linear = 10 ** np.floor(np.log10(usual))
        axes.set_yscale("symlog", linthresh=linear)
        ticks = SymmetricalLogLocator(base=10, linthresh=linear)
        ticks.set_params(numticks=7)
        axes.yaxis.set_major_locator(ticks)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.minorticks_off()
        return f"The scale is linear up to {number(linear)} and logarithmic beyond."
    return ""


def plain_numbers() -> ScalarFormatter:
    """Ticks as they are; in powers of ten where they are very large or small."""
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_powerlimits((-3, 5))
    return formatter


def draw_marks(axes: Axes, marks: Sequence[Mark], steps: np.ndarray) -> None:
    """A dashed line at each onset; the numbers of those that lie close together in one label."""
    low, high = axes.get_xlim()
    labels: list[tuple[float, list[str]]] = []
    for one in sorted(marks, key=lambda m: m.update):
        x = steps[min(one.update, len(steps) - 1)]
        if np.isfinite(x):
            axes.axvline(x, color=MARK, linestyle=(0, (3, 2)), linewidth=1)
            if not labels or x - labels[-1][0] > 0.06 * (high - low):
                labels.append((x, []))
            labels[-1][1].append(one.number)
    for x, numbers in labels:
        text = ", ".join(numbers)
        if len(text) > LONGEST_MARK:
            text = f"{numbers[0]} and {len(numbers) - 1} more"
        place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "fontsize": 8, "color": MARK}
        axes.annotate(text, (x, 1), xycoords=("data", "axes fraction"), **place)  # type: ignore[arg-type]
    axes.set_xlim(low, high)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend under the axes, in the room that `canvas` left."""
    figure.legend(handles, labels, loc="lower center", ncols=columns_of(labels), fontsize=8, handlelength=2.6)


# --- Words.


def number(x: float) -> str:
    """A number for reading; 'undefined' for NaN."""
    if np.isnan(x):
        return "undefined"
    return f"{x:,.0f}" if 1e4 <= abs(x) < 1e9 else f"{x + 0.0:.4g}"  # + 0.0: -0 is 0


def last_of(x: np.ndarray) -> float:
    """The last defined number; NaN if there is none."""
    defined = x[np.isfinite(x)]
    return float(defined[-1]) if len(defined) else float("nan")


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def slug(text: str) -> str:
    """`text` as a part of a file's name or of an id; of different texts different ones."""
    safe = re.sub(r"[^\w.]+", "-", text).strip("-.")
    return safe if safe == text else f"{safe}-{zlib.crc32(text.encode(errors='backslashreplace')):08x}"


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, its middle left out; what is no Unicode, as in a folder's name, escaped."""
    text = text.encode(errors="backslashreplace").decode()
    most = max(most, 5)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def distinct(labels: Sequence[str], most: int) -> list[str]:
    """`labels` in at most `most` characters each; numbered from 1 where two would become alike."""
    short = [shortened(label, most) for label in labels]
    if len(set(short)) == len(short):
        return short
    return [f"{i} {shortened(label, most - 4)}" for i, label in enumerate(labels, 1)]


def defined_as(name: str, groups: Sequence[Group]) -> str:
    """A sentence on what a metric is, without what the table says of agents that are not drawn."""
    if name not in metric_table.BY_NAME:
        return "A metric of this agent's own."
    drawn = {kind_of(group.metrics) for group in groups}
    definition = metric_table.BY_NAME[name].definition
    if others := "|".join(x.upper() for x in NAMES if x not in drawn):
        definition = re.sub(rf"; ({others}): (?:[^()]|\([^()]*\))*?(?=; (?:PPO|DQN|CEM): |$)", "", definition)
    return f"{sentence_case(definition)}."


def path_in_words(name: str, group: Group, named: bool) -> str:
    """Where a metric's IQM starts and ends, and its seeds."""
    x, steps = group.values(name), group.mean_steps
    iqm = iqm_along(x)
    defined = np.flatnonzero(np.isfinite(iqm))
    first, last = defined[0], defined[-1]
    unit = "steps" if "env_steps" in group.metrics else "updates"
    whose = f"{group.label}: " if named else ""
    ends = stats.last(x)
    ends = ends[np.isfinite(ends)]
    spread = f"; seeds end between {number(ends.min())} and {number(ends.max())}" if len(ends) > 1 else ""
    if first == last:
        only = f"{number(iqm[last])} at {number(steps[last])} {unit}, its only defined value"
        return f"{whose}IQM of {name}: {only}{spread}."
    verb = "rises" if iqm[last] > iqm[first] else "falls" if iqm[last] < iqm[first] else "goes"
    start, end = (f"{number(iqm[u])} at {number(steps[u])}" for u in (first, last))
    return f"{whose}IQM of {name} {verb} from {start} to {end} {unit}{spread}."


def scores_in_words(group: Group, label: str) -> str:
    """The best score, and the seeds with the worst ones; after the label if there is one."""
    scores = group.scores
    defined = np.flatnonzero(np.isfinite(scores))
    undefined = [seed for seed, x in zip(group.seeds, scores, strict=True) if not np.isfinite(x)]
    missing = f"; undefined: seeds {findings.ranges(undefined)}" if undefined else ""
    if not len(defined):
        told = "no score is defined"
    elif len(defined) > 1 and np.ptp(scores[defined]) == 0:
        told = f"all {len(defined)} seeds at {number(scores[defined[0]])}"
    else:
        best = scores[defined].max()
        worst = [i for i in defined[np.argsort(scores[defined], kind="stable")][:3] if scores[i] < best]
        listed = ", ".join(f"seed {group.seeds[i]} ({number(scores[i])})" for i in worst)
        told = f"worst {listed}, best {number(best)}" if worst else f"seed {group.seeds[defined[0]]} ({number(best)})"
    return f"{label}: {told}{missing}." if label else f"{sentence_case(told)}{missing}."


# --- Out of matplotlib.


def inline(picture: Picture) -> str:
    """The figure as an `<svg>` for a page: no numbers in the way of its words, colours by the page's style sheet."""
    text = svg_of(picture.figure, transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    for hexadecimal, variable in VARIABLES.items():
        text = text.replace(hexadecimal, f"var({variable})")
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"', "", text).replace("xlink:href", "href")
    text = re.sub(r"font-size: ([\d.]+)px; font-family: [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r'(?<= d=")[^"]*', lambda d: shorter_path(d[0]), text)
    text = unique_ids(text, picture.name)
    text = re.sub(r"\s*\n\s*", "\n", text)
    label = html.escape(picture.alt)
    box = re.search('viewBox="[^"]*"', text)
    assert box
    return f'<svg {box[0]} role="img" aria-label="{label}">{text[text.index(">") + 1 :]}'


def svg_of(figure: Figure, transparent: bool) -> str:
    """A figure as an SVG file."""
    file = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(file, format="svg", facecolor="none" if transparent else "white", metadata=nothing)
    return file.getvalue()


def shorter_path(path: str) -> str:
    """A path's coordinates to a tenth of a point: that is what makes the page small."""
    path = re.sub(r"-?\d+\.\d+", lambda x: f"{float(x[0]):.1f}".removesuffix(".0"), path)
    path = re.sub(r"\s+", " ", path).strip()
    return path if re.search("[A-KN-Y]", path) else path.replace(" L ", " ")  # after M, a line is meant without L


def unique_ids(svg: str, name: str) -> str:
    """Ids that are referred to, made the figure's own; the others left out: a page holds many figures."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda x: f' id="{name}-{x[1]}"' if x[1] in used else "", svg)
    return re.sub(r'(url\(#|href="#)([^)"]+)', rf"\g<1>{name}-\g<2>", svg)


def save(picture: Picture, folder: Path) -> list[Path]:
    """Write a figure as PNG and SVG. Raises UsageError if it cannot be written."""
    paths = [folder / f"{picture.name}.png", folder / f"{picture.name}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        picture.figure.savefig(paths[0], dpi=160, facecolor="white")
        paths[1].write_text(svg_of(picture.figure, transparent=False), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from error
    return paths
