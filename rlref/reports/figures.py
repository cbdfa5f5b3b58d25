"""The figures of a page: each is drawn once, with the onsets of findings marked in it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlref.reports import plots
from rlref.reports.captions import number
from rlref.reports.curve_statistics import evenly
from rlref.reports.figure_data import Group, Mark, Picture
from rlref.reports.markup import Html, escape, grid, listed
from rlref.reports.svg import inline
from rlref.reports.visits import visits_of
from rlref.runs.run import Run

if TYPE_CHECKING:
    from rlref.runs.job import Job

SPREADS = ("target", "advantage", "value", "reward", "td_error", "return", "length")


Key = tuple[str, str]  # of a figure: "plot" and a metric, or "spread" and a quantity with mean, std, min and max


class Figures:
    """The figures of some groups: each is drawn once, and kept."""

    def __init__(self, groups: Sequence[Group], marks: Mapping[Key, Sequence[Mark]], prefix: str = ""):
        self.groups, self.marks, self.prefix = groups, marks, prefix
        self.pictures: list[Picture] = []
        self.done: set[str] = set()
        """metrics that are drawn"""
        self.undefined: list[str] = []
        """metrics that are undefined at every update"""
        self.places: dict[Key, str] = {}
        """key of `plot_key` -> the figure's id"""
        self.metrics = {name for g in groups for name in g.metrics}

    def curves(self, names: Iterable[str]) -> list[Html]:
        """A figure of each metric that is not drawn yet; those that are undefined everywhere are noted."""
        kept = []
        for name in names:
            if name in self.metrics and name not in self.done:
                self.done.add(name)
                key = ("plot", name)
                if picture := plots.curve(name, self.groups, self.marks.get(key, ())):
                    kept.append(self.keep(picture, key))
                else:
                    self.undefined.append(name)
        return kept

    def others(self) -> Html:
        """Figures of the metrics that are not drawn yet; constant and undefined ones are listed in sentences."""
        left = sorted(self.metrics - self.done - {"env_steps"})
        constant: dict[str, float] = {}
        for name in left:
            values = {g.constant(name) if name in g.metrics else None for g in self.groups}
            if len(values) == 1 and (value := values.pop()) is not None:
                constant[name] = value
        drawn = grid(self.curves(name for name in left if name not in constant))
        sentences = [
            (
                "The same at every update, in every seed",
                [f"{name} {number(x)}" for name, x in constant.items()],
            ),
            ("Undefined at every update", self.undefined),
        ]
        return drawn + Html("".join(f"<p>{what}: {listed(names)}.</p>\n" for what, names in sentences if names))

    def spreads(self) -> list[Html]:
        """A figure of each quantity that has a mean, a standard deviation, a minimum and a maximum.

        With several groups only the mean would be drawn: there is no figure if it has been drawn already.
        """
        kept = []
        there = spreads_of(self.metrics)
        for what in (*SPREADS, *sorted(there - set(SPREADS))):
            if what not in there:
                continue
            drawn = len(self.groups) > 1 and f"{what}_mean" in self.done
            self.done |= {f"{what}_{part}" for part in plots.PARTS}
            if drawn:
                continue
            key = ("spread", what)
            if picture := plots.distribution(what, self.groups, self.marks.get(key, ())):
                kept.append(self.keep(picture, key))
            else:
                self.undefined.append(what)
        return kept

    def scores(self) -> list[Html]:
        """The final scores; nothing where none is defined."""
        picture = plots.final_scores(self.groups)
        return [self.keep(picture)] if picture else []

    def maps(self, run: Run, job: "Job | str") -> Html:
        """Where a trained seed goes, and what it expects there; a sentence where that cannot be drawn."""
        if isinstance(job, str):
            return Html(f"<p>Not drawn, as the run cannot be rebuilt: {escape(job)}.</p>")
        visits = visits_of(run, job)
        if isinstance(visits, str):
            return Html(f"<p>{escape(visits)}</p>")
        sentence, seen = visits
        return Html(f"<p>{escape(sentence)}</p>") + grid(map(self.keep, plots.maps(seen)))

    def keep(self, picture: Picture, key: Key | None = None) -> Html:
        """A figure as HTML, remembered under its key if it has one."""
        picture = picture._replace(name=self.prefix + picture.name)
        self.pictures.append(picture)
        if key is None:
            return figure_html(picture)
        self.places[key] = picture.name
        return figure_html(picture, self.marks.get(key, ()))


def figure_html(picture: Picture, marks: Sequence[Mark] = ()) -> Html:
    """A figure with its words, and what is marked in it."""
    onsets = "; ".join(
        f'<a href="#finding-{m.number}">{m.number} {escape(m.text)}</a>, update {m.update}' for m in marks
    )
    return Html(
        f'<figure id="{picture.name}">\n<figcaption><strong>{escape(picture.title)}</strong></figcaption>\n'
        f"{inline(picture)}\n<p>{escape(picture.caption)}</p>\n"
        + (f"<p>Onsets: {onsets}.</p>\n" if onsets else "")
        + "</figure>"
    )


def returns_html(figures: Figures, drawn: Sequence[Html]) -> Html:
    """How to read the figures, and the figures `drawn`."""
    if not drawn:
        return Html("<p>No seed has a score: no episode has ended, or the agent has no such metric.</p>")
    if all(len(g.seeds) <= 1 for g in figures.groups):
        return Html("<p>One seed: there is no interval, and nothing to say of how much seeds differ.</p>") + grid(drawn)
    words = "Thick lines are the interquartile mean (IQM) over seeds, shaded its 95 % bootstrap interval"
    thin = "; thin lines are seeds, through the lowest and the highest value of every short stretch of the training"
    many = len(figures.groups[0].seeds) if len(figures.groups) == 1 else 0
    if many > plots.DRAWN_SEEDS:
        scores = figures.groups[0].scores
        count, without = len(evenly(scores, plots.DRAWN_SEEDS)), undefined_in(scores)
        thin += f" ({count} of the {many} seeds, evenly from the worst to the best score{without})"
    marked = ". A dashed line is where a finding begins, by its number" if figures.marks else ""
    return Html(f"<p>{words}{thin if many > 1 else ''}{marked}.</p>") + grid(drawn)


def undefined_in(scores: np.ndarray) -> str:
    """How many have no score, as the end of a sentence on those that are drawn."""
    count = int((~np.isfinite(scores)).sum())
    return f"; {count} without a score {'is' if count == 1 else 'are'} left out" if 0 < count < len(scores) else ""


def spreads_of(metrics: Iterable[str]) -> set[str]:
    """The quantities that have a mean, a standard deviation, a minimum and a maximum."""
    names = set(metrics)
    wholes = {name.removesuffix("_mean") for name in names if name.endswith("_mean")}
    return {what for what in wholes if all(f"{what}_{part}" in names for part in plots.PARTS)}
