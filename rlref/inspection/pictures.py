"""The figures of `rlref inspect`: histograms of observations and rewards, one episode, and exploration."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlref.errors import UsageError
from rlref.inspection.measurements import MAX_DIMENSIONS, is_image
from rlref.inspection.random_policy import Array, Rollout
from rlref.inspection.result import Inspection, Samples

MARKED = 50  # longest episode, in steps, that is drawn with dots


def draw(inspection: Inspection, folder: Path | str) -> list[Path]:
    """Write histograms.png, episode.png and action_repeat.png to `folder`, which may be new; none without samples.

    Raises UsageError if they cannot be written.
    """
    if inspection.samples is None:
        return []
    paths = []
    for name, picture in (("histograms", _histograms), ("episode", _episode), ("action_repeat", _action_repeat)):
        figure = picture(inspection.samples)
        figure.suptitle(f"{inspection.env_id}, random policy: {TITLES[name]}")
        paths.append(Path(folder) / f"{name}.png")
        try:
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(paths[-1], dpi=110)
        except OSError as error:
            raise UsageError(f"{paths[-1]} cannot be written: {error.strerror or error}") from error
    return paths


TITLES = {
    "histograms": "what it sees and gets",
    "episode": "one episode",
    "action_repeat": "how far it comes, by how often each action is repeated",
}


def shape_of(samples: Samples) -> tuple[int, ...]:
    """The shape of an observation."""
    return tuple(getattr(samples.space, "shape", samples.rollout.mean.shape))


def _histogram(axes: Axes, x: Array, title: str) -> None:
    """Shares of values; on a logarithmic scale if one bin holds more than 90 %."""
    x = np.asarray(x, np.float64)[np.isfinite(x)]
    values, counts = np.unique(x, return_counts=True)
    spread, gap = np.ptp(values) if len(values) else 0, np.diff(values).min(initial=np.inf)
    whole = (values == np.round(values)).all()
    if len(values) <= 20 and spread <= 60 * gap:
        top = counts.max(initial=0) / len(x) if len(values) > 1 else 0
        axes.bar(values, counts / len(x), width=0.8 * gap if spread else 0.2)
        if not spread:
            axes.set_xlim(*(v + side for v in values for side in (-1, 1)))
        if len(values) <= 5 and gap >= 0.15 * spread:
            axes.set_xticks(values, [f"{v:.3g}" for v in values])
        elif whole:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        width = max(1, round(spread / 50))  # of bins, whole for integers: else some would hold one more than others
        bins: Any = np.arange(values[0] - 0.5, values[-1] + width, width) if whole else 50
        shares, *_ = axes.hist(x, bins=bins, weights=np.full(len(x), 1 / len(x)))
        top = np.max(shares)
    if top > 0.9:
        axes.set_yscale("log")
    axes.set_title(title, fontsize=9)


def _dims_shown(r: Rollout) -> Array:
    """Indices of the observation dimensions to draw: all, or the dozen that vary most."""
    return np.sort(np.argsort(-r.std, kind="stable")[:MAX_DIMENSIONS])


def _histograms(samples: Samples) -> Figure:
    r, shape = samples.rollout, shape_of(samples)
    panels: list[tuple[str, Any, str]]
    if is_image(shape):
        planes = r.mean.reshape(*shape[:2], -1)
        panels = [("plane", planes[..., i], f"mean of channel {i}") for i in range(planes.shape[-1])][:MAX_DIMENSIONS]
        panels = panels if len(shape) == 3 else [("plane", planes[..., 0], "mean observation")]
    elif hasattr(samples.space, "n"):
        panels = [("values", r.obs[:, 0], f"observation, of 0 to {samples.space.n - 1}")]
    else:
        panels = [("values", r.obs[:, i], f"observation {i}") for i in _dims_shown(r)]
    rows = -(-len(panels) // 4) + 1
    figure = Figure((11, 2.1 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, 4, squeeze=False)
    for axes in grid.ravel():
        axes.set_visible(False)
        axes.tick_params(labelsize=8)
    last = [("reward", r.steps["reward"].ravel()), ("return of an episode", samples.returns)]
    last += [("length of an episode, steps", samples.lengths), ("value target at each step", samples.targets)]
    panels += [("none", None, "")] * (-len(panels) % 4) + [("values", x, title) for title, x in last]
    for axes, (kind, x, title) in zip(grid.ravel(), panels, strict=True):
        if kind == "none" or not len(x):
            continue
        axes.set_visible(True)
        if kind == "plane":
            figure.colorbar(axes.imshow(x, interpolation="nearest"), ax=axes).ax.tick_params(labelsize=8)
            axes.set_title(title, fontsize=9)
        else:
            _histogram(axes, x, title)
            if axes in grid[:, 0]:
                axes.set_ylabel("share of episodes or steps" if axes is grid[-1, 0] else "share of steps", fontsize=8)
    return figure


def _picture(obs: Array, shape: tuple[int, ...]) -> Array:
    """One image of an observation: its channels in different colours if they are planes of 0 and 1, else their mean."""
    image = obs.reshape(*shape[:2], -1)
    planes = image.shape[-1] > 1 and np.isin(image, (0, 1)).all()
    return (image * np.arange(1, image.shape[-1] + 1)).max(axis=-1) if planes else image.mean(axis=-1)


def _episode(samples: Samples) -> Figure:
    r, shape = samples.rollout, shape_of(samples)
    obs, rewards = r.first, r.steps["reward"][: len(r.first), 0]
    image = is_image(shape)
    dims = [] if image else list(_dims_shown(r))
    rows = 1 if image else len(dims)
    figure = Figure((9, (1.6 if image else 0.8 * rows) + 3.4), layout="constrained")
    grid = figure.add_gridspec(rows + 2, 1, height_ratios=[1.6 if image else 0.8] * rows + [1.2, 1.2])
    lines = [(f"observation {i}" if len(r.mean) > 1 else "observation", obs[:, i]) for i in dims]
    if image:
        times = np.unique(np.linspace(0, len(obs) - 1, 8).astype(int))
        pictures = [_picture(obs[t], shape) for t in times]
        strip = grid[0].subgridspec(1, 8)
        for i, t in enumerate(times):
            axes = figure.add_subplot(strip[i])
            axes.imshow(pictures[i], vmin=0, vmax=max(x.max() for x in pictures), interpolation="nearest")
            axes.set_title(f"step {t}", fontsize=8)
            axes.set_axis_off()
    shared = None
    for i, (title, x) in enumerate([*lines, ("reward", rewards), ("sum of rewards", np.cumsum(rewards))]):
        shared = axes = figure.add_subplot(grid[i + (1 if image else 0)], sharex=shared)
        axes.plot(x, marker="o" if len(x) <= MARKED else None, markersize=3, linewidth=1)
        axes.set_ylabel(title, fontsize=8, rotation=0, ha="right", va="center")
        axes.tick_params(labelsize=8, labelbottom=title == "sum of rewards")
    ended = [name for name in ("terminated", "truncated") if r.steps[name][len(obs) - 1, 0]]
    axes.set_xlabel(f"step; {len(obs)} of them, then {' and '.join(ended) or 'it goes on'}")
    return figure


def _action_repeat(samples: Samples) -> Figure:
    shape, std = shape_of(samples), samples.rollout.std
    dims = np.sort(np.argsort(-std, kind="stable")[:2])
    figure = Figure((12, 3.9), layout="constrained")
    top = max(x.std.max() for x in samples.explored.values())
    countable = any(x.distinct < x.num_steps / 2 for x in samples.explored.values())
    shared = None
    for i, (repeat, x) in enumerate(samples.explored.items()):
        shared = axes = figure.add_subplot(1, len(samples.explored), i + 1, sharex=shared, sharey=shared)
        returns, lengths = x.returns_and_lengths(x.episodes(1))
        title = f"action repeat {repeat}"
        if len(returns):
            title += f", length {lengths.mean():.4g}\nreturn {returns.mean():.4g}, at most {returns.max():.4g}"
        else:
            title += "\nno episode ended"
        if countable:
            title += f"\n{x.distinct:,} observations in {x.num_steps:,} steps"
        if is_image(shape):
            planes = x.std.reshape(*shape[:2], -1)
            drawn = axes.imshow(planes.max(axis=-1), vmin=0, vmax=top, interpolation="nearest")
            if repeat == max(samples.explored):
                figure.colorbar(drawn, ax=axes, label="standard deviation", shrink=0.8)
        elif len(dims) == 1:
            _histogram(axes, x.obs[:, 0], "")
            axes.set_xlabel("observation")
        else:
            axes.plot(*x.obs[:, dims].T, ".", markersize=2, alpha=0.3, rasterized=True)
            axes.set_xlabel(f"observation {dims[0]}")
        if i == 0 and not is_image(shape):
            axes.set_ylabel("share of steps" if len(dims) == 1 else f"observation {dims[1]}")
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8, labelleft=i == 0)
    return figure
