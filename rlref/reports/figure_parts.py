"""The style and the parts of a figure: canvas, axes, legend, marks."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, ScalarFormatter, SymmetricalLogLocator

from rlref import metrics as metric_table
from rlref.reports.captions import number, shortened
from rlref.reports.figure_data import Group, Mark

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
    "text.parse_math": False,  # a label may contain $
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}
WIDTH, HEIGHT = 5.3, 3.1  # inches; narrow, so that the letters can be read on a phone


LONGEST_MARK = 16  # letters of a label over marks
MAX_LOG_RATIO = 1e5  # largest ratio on a logarithmic axis


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The context in which figures have to be made and written."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A page is shown in the reader's fonts, which have the glyphs that matplotlib's lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


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
    """The number of columns of a legend."""
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


def set_y_scale(axes: Axes, name: str, values: np.ndarray) -> str:
    """Choose the scale of the y axis for `values`; returns a sentence on values outside it or on the scale, or ''."""
    values = values[np.isfinite(values)]
    axes.yaxis.set_major_formatter(plain_numbers())
    if not len(values):
        return ""
    if name == "explained_variance" and values.min() < -1:
        axes.set_ylim(-1.05, 1.05)
        return f"Values below -1 are outside; the lowest is {number(values.min())}."
    largest = np.abs(values).max()
    usual = max(float(np.median(np.abs(values[values != 0]))) if largest else 1.0, largest / MAX_LOG_RATIO)
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
    """Tick labels without an offset; in powers of ten if they are very large or small."""
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
