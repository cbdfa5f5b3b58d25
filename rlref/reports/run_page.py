"""The report of one run: the sections of its page, in order."""

import collections

import numpy as np

from rlref import stats
from rlref.reports.curve_statistics import evenly
from rlref.reports.facts import (
    agent_name,
    environment_name,
    header,
    label_of,
    provenance_html,
    setting_name,
    setting_of,
    settings_html,
    settings_scores,
)
from rlref.reports.figure_data import Group, Mark, Picture
from rlref.reports.figures import Figures, Key, returns_html, undefined_in
from rlref.reports.markup import Html, folded, grid, section
from rlref.reports.verdicts import number_findings, plot_key, verdicts_html
from rlref.reports.visits import rebuilt
from rlref.runs.run import Run

LEARNING = ("entropy", "kl", "explained_variance")
SEARCH = ("elite_mean", "entropy", "kl", "kl_excess", "std_mean", "explained_variance", "selection_bias")
MOST_SETTINGS = 7  # most batched settings that get a curve: one per colour


def page_of_run(run: Run) -> tuple[str, str, list[Picture]]:
    """Title, body and figures of one run's report."""
    title = f"{agent_name(run)} on {environment_name(run)}" + (f", {setting_of(run)}" if setting_of(run) else "")
    groups, left_out = groups_of(run)
    diagnosis = run.diagnose()
    numbered = list(number_findings(diagnosis.findings))
    marks: dict[Key, list[Mark]] = collections.defaultdict(list)
    for label, finding in numbered:
        if finding.onset is not None:
            marks[plot_key(finding, run)].append(Mark(label, finding.onset, finding.title))
    figures = Figures(groups, marks)

    # Drawn first, as the verdicts link only to figures that exist.
    returns = figures.curves([run.score]) + figures.scores()
    learning = figures.curves(SEARCH if is_search(run) else LEARNING)
    spreads = figures.spreads()
    found = figures.curves([name for kind, name in marks if kind == "plot"])
    others = figures.others()
    job = rebuilt(run)
    maps = figures.maps(run, job)
    sections = [
        header(run, title),
        section("Verdicts", verdicts_html(diagnosis, numbered, figures, run)),
        section("Returns", left_out + settings_scores(run) + returns_html(figures, returns)),
        section("Learning", grid(learning)),
        section("Distributions", grid(spreads)),
        section("What else the verdicts are about", grid(found)),
        section("Where it goes", maps),
        section("Settings", settings_html(run, job)),
        section("Machine and time", provenance_html(run)),
        folded("Other metrics", others),
    ]
    return title, "\n".join(sections), figures.pictures


def groups_of(run: Run) -> tuple[list[Group], Html]:
    """The groups to draw: all seeds, or one group per batched setting; and a sentence on settings that are left out."""
    if not run.batched:
        return [Group(label_of(run), run.metrics, run.seeds)], Html()
    iqms = np.array([stats.iqm(x) for x in run.scores])
    chosen = evenly(iqms, MOST_SETTINGS).tolist()
    which = f"evenly from the worst to the best{undefined_in(iqms)}"
    said = f"<p>Drawn are {len(chosen)} of {len(iqms)} settings, {which}.</p>"
    groups = [Group(setting_name(run, i), {n: x[i] for n, x in run.metrics.items()}, run.seeds) for i in chosen]
    return groups, Html(said if len(chosen) < len(iqms) else "")


def is_search(run: Run) -> bool:
    """Whether the agent is a search without gradients, as CEM is."""
    return "elite_mean" in run.metrics
