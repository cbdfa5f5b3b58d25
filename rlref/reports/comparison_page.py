"""The report of several runs side by side: the sections of its page."""

from collections.abc import Mapping, Sequence

from rlref.errors import UsageError
from rlref.reports import compare, plots
from rlref.reports.comparison_result import Comparison
from rlref.reports.facts import in_words, interval_in_words, status_of
from rlref.reports.figure_data import Group, Picture
from rlref.reports.figure_parts import SERIES
from rlref.reports.figures import Figures, figure_html, returns_html
from rlref.reports.markup import Html, badge, escape, folded, grid, listed, section, table
from rlref.reports.methods import Method
from rlref.reports.run_page import LEARNING, SEARCH, is_search
from rlref.reports.tables import comparison_tables
from rlref.reports.verdicts import leading_sentence


def page_of_methods(
    methods: Sequence[Method], references: Mapping[str, float] | None
) -> tuple[str, str, list[Picture]]:
    """Title, body and figures of the report of several runs."""
    title = f"Comparison: {', '.join(method.label for method in methods)}"
    environments = list(dict.fromkeys(name for method in methods for name in method.runs))
    sections = [
        Html(f"<header>\n<h1>{escape(title)}</h1>\n<p>{listed(environments)}</p>\n</header>"),
        section("Runs", runs_table(methods)),
    ]
    pictures: list[Picture] = []
    warned = numbers = Html()
    try:
        comparison = compare.compare(methods, references)
    except UsageError as refused:
        sections.append(section("Comparison", Html(f"<p>They are not compared: {escape(refused)}.</p>")))
        differing = differing_html(methods)
    else:
        finals = [r for r in (*comparison.overall, *comparison.results) if r.quantity == "final"]
        pictures += [plots.profile(result.environment or "", result.profiles) for result in finals]
        first = Html("\n".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in comparison.sentences))
        numbers, differing = tables_html(comparison)
        if len(environments) == 1 and len(methods) == 2:  # few numbers
            first, numbers = first + numbers, Html()
        sections.append(section("Comparison", first + grid(map(figure_html, pictures))))
        items = "".join(f"<li>{badge('WARN')} {escape(text)}</li>" for text in comparison.warnings)
        warned = Html(f"<ul>{items}</ul>" if items else "")
    for i, environment in enumerate(environments):
        # A method without a run here keeps its place, and so its colour.
        there = [method.runs.get(environment) for method in methods]
        groups = [
            Group(m.label, run.metrics if run else {}, run.seeds if run else [])
            for m, run in zip(methods, there, strict=True)
        ]
        figures = Figures(groups, {}, f"environment-{i}-" if len(environments) > 1 else "")
        scores = dict.fromkeys(run.score for run in there if run)
        learning = SEARCH if all(is_search(run) for run in there if run) else LEARNING
        drawn = [*figures.curves(scores), *figures.scores(), *figures.curves(learning)]
        sections.append(section(environment, returns_html(figures, drawn), f"environment-{i}"))
        spreads = figures.spreads()
        sections.append(folded(f"{environment}: other metrics", grid(spreads) + figures.others()))
        pictures += figures.pictures
    sections += [
        section("Warnings", warned),
        section("The comparison in numbers", numbers),
        section("Settings that differ", differing),
    ]
    return title, "\n".join(sections), pictures


def runs_table(methods: Sequence[Method]) -> Html:
    """What each run is, how it ended, and what the verdicts say of it."""
    rows: list[list[str]] = []
    for i, method in enumerate(methods):
        for environment, run in method.runs.items():
            severity, sentence = leading_sentence(run.diagnose())
            shape = next(iter(run.metrics.values())).shape
            about = [environment, run.agent, str(len(run.seeds)), f"{shape[-1]:,}", status_of(run)]
            verdict = Html(f'<span class="{severity.lower() or "healthy"}">{badge(severity)}</span> {escape(sentence)}')
            colour = f"var(--series-{i % len(SERIES)})"
            name = Html(f'<span style="color: {colour}" aria-hidden="true">■</span> {escape(method.label)}')
            rows.append([name, *about, interval_in_words(run.scores), verdict])
    names = ["run", "environment", "agent", "seeds", "updates", "status", "score, IQM [95 % interval]", "verdict"]
    return table(names, rows)


def tables_html(comparison: Comparison) -> tuple[Html, Html]:
    """The comparison's numbers, and the settings that differ."""
    numbers, differing = Html(), Html()
    for one in comparison_tables(comparison):
        if not one.rows:
            continue
        names = list(one.rows[0])
        content = table(names, [[row[name] for name in names] for row in one.rows])
        if "setting" in names:
            differing = content
        else:
            numbers += f"<h3>{escape(one.title)}</h3>\n{content}\n"
    return numbers, differing


def differing_html(methods: Sequence[Method]) -> Html:
    """The settings that are not the same in all runs."""
    each = [run for method in methods for run in method.runs.values()]
    names = dict.fromkeys(name for run in each for name in run.config)
    rows = [[name, *(in_words(run.config.get(name, "-")) for run in each)] for name in names]
    labels = [f"{method.label}, {environment}" for method in methods for environment in method.runs]
    differ = [row for row in rows if len(set(row[1:])) > 1]
    return table(["setting", *labels], differ) if differ else Html()
