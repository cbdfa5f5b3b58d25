"""The report of a run, or of several side by side: one HTML page that needs nothing else.

    report.write(rlref.load("runs/mine"))            runs/mine/report.html; or: rlref report runs/mine
    report.write_comparison(compare.read(["runs/a", "runs/b"]), Path("comparison.html"))

The page holds its style and its figures (SVG), loads nothing from anywhere, and is readable on a phone, in the dark and
on paper. What is in it of the user's (notes, ids, settings) is escaped.
"""

import collections
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlref import stats
from rlref.contract import NAMES
from rlref.errors import UsageError
from rlref.health import findings
from rlref.reports import compare, plots
from rlref.runs import files
from rlref.runs.folder import fcntl, read_about
from rlref.runs.run import Run

if TYPE_CHECKING:
    from rlref.health.engine import Diagnosis
    from rlref.runs.job import Job
    from rlref.runs.trained import Trained


GENERATOR = '<meta name="generator" content="rlref report">'
LEARNING = ("entropy", "kl", "explained_variance")
SEARCH = ("elite_mean", "entropy", "kl", "kl_excess", "std_mean", "explained_variance", "selection_bias")
SPREADS = ("target", "advantage", "value", "reward", "td_error", "return", "length")
UNNAMED = {  # check -> the metric that its plot shows, where `Finding.what` names none
    "first_ratio_off": "first_ratio_error",
    "no_signal": "return_mean",
    "sample_age_off": "sample_age",
    "undiscounted_without_ends": "episodes",
}
Key = tuple[str, str]  # of a figure: "plot" and a metric, or "spread" and what has a mean, std, min and max
SYMBOLS = {"ERROR": "✖", "WARN": "▲", "INFO": "●"}
MOST_SETTINGS = 7  # of batched settings that get a curve: as many as there are colours
MAP_DIMENSIONS, MAP_EPISODES, MAP_STEPS = 3, 20, 1000


BEGINNING = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
"""


class Html(str):
    """Text that is HTML already."""

    def __add__(self, other: str) -> "Html":
        return Html(str(self) + other)


def write(run: Run, out: Path | None = None, pictures: Path | None = None) -> Path:
    """Write the report of one run; returns its path.

    Args:
      run: the run.
      out: the page; without it, report.html in the run's folder, of setting 2 alone report-setting-2.html.
      pictures: a folder for every figure as PNG and SVG; none without.

    Raises UsageError where there is no place to write to, or the place holds something else than a report.
    """
    if out is None:
        if run.path is None:
            raise UsageError("this run was not kept in a folder: say where its report is to go, as out=report.html")
        out = run.path / ("report.html" if run.setting is None else f"report-setting-{run.setting}.html")
    return _write(Path(out), pictures, lambda: of_run(run))


def write_comparison(
    methods: Sequence[compare.Method],
    out: Path,
    pictures: Path | None = None,
    references: Mapping[str, float] | None = None,
) -> Path:
    """Write the report of several runs side by side; returns its path.

    `methods` and `references` are as in `compare.compare`. Runs that it cannot compare are drawn all the same, and the
    page says why. Raises UsageError as `write` does, and for a run with batched settings.
    """
    for method in methods:
        for run in method.runs.values():
            if run.batched:
                raise UsageError(f"{method.label} has several settings: choose one, as {run.path or 'PATH'}#0")
    return _write(Path(out), pictures, lambda: of_methods(methods, references))


def _write(out: Path, pictures: Path | None, made: Callable[[], tuple[str, str, list[plots.Picture]]]) -> Path:
    """Make a page, and write it and its figures."""
    refuse_others(out)
    with plots.style():
        title, body, drawn = made()
        # A folder's name may be no Unicode.
        text = page(title, body).encode(errors="backslashreplace")
        try:
            files.write(out, lambda file: file.write(text))
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror or error}") from error
        if pictures is not None:
            for picture in drawn:
                plots.save(picture, Path(pictures))
    return out


def refuse_others(out: Path) -> None:
    """Raise UsageError if `out` is there already and no report, or in no folder."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder; give a file in it, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: there is no folder {out.parent}")
    if out.exists() and not out.is_file():
        raise UsageError(f"{out} is no regular file; give one, such as report.html")
    if out.exists() and not begins_as_ours(out):
        raise UsageError(f"{out} exists already and is no report of rlref's: give another file")


def begins_as_ours(path: Path) -> bool:
    """Whether a file begins as `page` does. Raises UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(BEGINNING)) == BEGINNING.encode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def page(title: str, body: str) -> str:
    """The whole page."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return f"""{BEGINNING}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


# --- One run.


def of_run(run: Run) -> tuple[str, str, list[plots.Picture]]:
    """Title, body and figures of one run's report."""
    title = f"{agent_name(run)} on {environment_name(run)}" + (f", {setting_of(run)}" if setting_of(run) else "")
    groups, left_out = groups_of(run)
    diagnosis = run.diagnose()
    numbered = list(number_findings(diagnosis.findings))
    marks: dict[Key, list[plots.Mark]] = collections.defaultdict(list)
    for label, finding in numbered:
        if finding.onset is not None:
            marks[plot_key(finding, run)].append(plots.Mark(label, finding.onset, finding.title))
    figures = Figures(groups, marks)

    # Drawn first: the verdicts link to those figures that there are.
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
        section("Machine and time", provenance(run)),
        folded("Other metrics", others),
    ]
    return title, "\n".join(sections), figures.pictures


class Figures:
    """The figures of some groups: each is drawn once, and kept."""

    def __init__(self, groups: Sequence[plots.Group], marks: Mapping[Key, Sequence[plots.Mark]], prefix: str = ""):
        self.groups, self.marks, self.prefix = groups, marks, prefix
        self.pictures: list[plots.Picture] = []
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
        """The metrics that are not drawn yet; in sentences those that never vary, or are undefined everywhere."""
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
                [f"{name} {plots.number(x)}" for name, x in constant.items()],
            ),
            ("Undefined at every update", self.undefined),
        ]
        return drawn + Html("".join(f"<p>{what}: {listed(names)}.</p>\n" for what, names in sentences if names))

    def spreads(self) -> list[Html]:
        """A figure of each quantity that has a mean, a standard deviation, a minimum and a maximum.

        Of several groups that would be the mean alone: none where that is drawn already.
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

    def keep(self, picture: plots.Picture, key: Key | None = None) -> Html:
        """A figure as HTML, remembered under its key if it has one."""
        picture = picture._replace(name=self.prefix + picture.name)
        self.pictures.append(picture)
        if key is None:
            return figure_html(picture)
        self.places[key] = picture.name
        return figure_html(picture, self.marks.get(key, ()))


def figure_html(picture: plots.Picture, marks: Sequence[plots.Mark] = ()) -> Html:
    """A figure with its words, and what is marked in it."""
    onsets = "; ".join(
        f'<a href="#finding-{m.number}">{m.number} {escape(m.text)}</a>, update {m.update}' for m in marks
    )
    return Html(
        f'<figure id="{picture.name}">\n<figcaption><strong>{escape(picture.title)}</strong></figcaption>\n'
        f"{plots.inline(picture)}\n<p>{escape(picture.caption)}</p>\n"
        + (f"<p>Onsets: {onsets}.</p>\n" if onsets else "")
        + "</figure>"
    )


def returns_html(figures: Figures, drawn: Sequence[Html]) -> Html:
    """How to read the figures, and the first ones."""
    if not drawn:
        return Html("<p>No seed has a score: no episode has ended, or the agent has no such metric.</p>")
    if all(len(g.seeds) <= 1 for g in figures.groups):
        return Html("<p>One seed: there is no interval, and nothing to say of how much seeds differ.</p>") + grid(drawn)
    words = "Thick lines are the interquartile mean (IQM) over seeds, shaded its 95 % bootstrap interval"
    thin = "; thin lines are seeds, through the lowest and the highest value of every short stretch of the training"
    many = len(figures.groups[0].seeds) if len(figures.groups) == 1 else 0
    if many > plots.DRAWN_SEEDS:
        scores = figures.groups[0].scores
        count, without = len(plots.evenly(scores, plots.DRAWN_SEEDS)), undefined_in(scores)
        thin += f" ({count} of the {many} seeds, evenly from the worst to the best score{without})"
    marked = ". A dashed line is where a finding begins, by its number" if figures.marks else ""
    return Html(f"<p>{words}{thin if many > 1 else ''}{marked}.</p>") + grid(drawn)


def groups_of(run: Run) -> tuple[list[plots.Group], Html]:
    """What is drawn of a run: all seeds, or one group per setting; and a sentence on the settings that are not."""
    if not run.batched:
        return [plots.Group(name_of(run), run.metrics, run.seeds)], Html()
    iqms = np.array([stats.iqm(x) for x in run.scores])
    chosen = plots.evenly(iqms, MOST_SETTINGS).tolist()
    evenly = f"evenly from the worst to the best{undefined_in(iqms)}"
    said = f"<p>Drawn are {len(chosen)} of {len(iqms)} settings, {evenly}.</p>"
    groups = [plots.Group(setting_name(run, i), {n: x[i] for n, x in run.metrics.items()}, run.seeds) for i in chosen]
    return groups, Html(said if len(chosen) < len(iqms) else "")


def undefined_in(scores: np.ndarray) -> str:
    """How many have no score, as the end of a sentence on those that are drawn."""
    count = int((~np.isfinite(scores)).sum())
    return f"; {count} without a score {'is' if count == 1 else 'are'} left out" if 0 < count < len(scores) else ""


def setting_name(run: Run, i: int) -> str:
    return ", ".join(f"{name} {run.config[name][i]:.4g}" for name in run.batched)


def spreads_of(metrics: Iterable[str]) -> set[str]:
    """The quantities that have a mean, a standard deviation, a minimum and a maximum."""
    names = set(metrics)
    wholes = {name.removesuffix("_mean") for name in names if name.endswith("_mean")}
    return {what for what in wholes if all(f"{what}_{part}" in names for part in plots.PARTS)}


def setting_of(run: Run) -> str:
    """Which of several settings a run is; nothing if it is a whole run."""
    return "" if run.setting is None else f"setting {run.setting}"


def is_search(run: Run) -> bool:
    """Whether it searches, as CEM does, and follows no gradient."""
    return "elite_mean" in run.metrics


# --- The verdicts.


def number_findings(found: Iterable[findings.Finding], under: str = "") -> Iterator[tuple[str, findings.Finding]]:
    """Every finding with its number: 1, 2 and, for what follows from them, 1.1, 1.2."""
    for i, finding in enumerate(found, 1):
        yield f"{under}{i}", finding
        yield from number_findings(finding.follows, f"{under}{i}.")


def metric_of(finding: findings.Finding, metrics: Iterable[str], score: str) -> str:
    """The metric that a finding is best seen in: the first that its `what` names, else the score."""
    known = set(metrics)
    for word in (UNNAMED.get(finding.check, ""), *re.findall(r"[a-z_]+", finding.what)):
        if word == "return":
            return score
        for name in (word, f"{word}_mean", f"approx_{word}"):
            if name in known:
                return name
    return score


def plot_key(finding: findings.Finding, run: Run) -> Key:
    """The figure that a finding is marked in: a metric, or the quantity whose mean or extremes it is about."""
    name = metric_of(finding, run.metrics, run.score)
    what, _, part = name.rpartition("_")
    spread = name != run.score and part in plots.PARTS and what in spreads_of(run.metrics)
    return ("spread", what) if spread else ("plot", name)


def lead(diagnosis: "Diagnosis") -> tuple[str, str]:
    """The worst severity ('' for none above INFO) and one sentence, as `rlref diagnose` has them."""
    worst = [f for f in diagnosis.findings if f.worst != "INFO"]
    if worst:
        return worst[0].worst, f"{worst[0].title}. {worst[0].meaning}"
    return "", "Healthy." if diagnosis.checked else "Nothing could be checked."


def verdicts_html(
    diagnosis: "Diagnosis", numbered: Sequence[tuple[str, findings.Finding]], figures: Figures, run: Run
) -> Html:
    """The leading sentence, the findings, and what was not checked."""
    severity, sentence = lead(diagnosis)
    parts = [f'<p class="lead {severity.lower() or "healthy"}">{badge(severity)} {escape(sentence)}</p>']
    top = {label: f for label, f in numbered if "." not in label}
    # In full what is wrong; in short what is merely worth knowing, and what is of many settings.
    full = [label for label, f in top.items() if f.worst != "INFO" and not run.batched]
    parts += [finding_html(label, top[label], figures, run) for label in full]
    parts.append(short_html([(label, f) for label, f in numbered if label.partition(".")[0] not in full], figures, run))
    reasons: dict[str, list[str]] = {}
    for name, why in diagnosis.unchecked.items():
        reasons.setdefault(why, []).append(name)
    parts.append(f'<p class="small">{len(diagnosis.checked)} checks were made.')
    parts += [f" Not checked, for want of {escape(why)}: {listed(names)}." for why, names in reasons.items()]
    return Html("\n".join(parts) + "</p>")


def badge(severity: str) -> Html:
    """A severity as a symbol and a word."""
    return Html(f'<span class="badge">{SYMBOLS.get(severity, "✔")} {severity or "OK"}</span>')


def finding_html(label: str, finding: findings.Finding, figures: Figures, run: Run) -> str:
    """A finding with all that belongs to it."""
    rows = [
        ("Where", escape(findings.where(finding))),
        ("Measured", escape(findings.measured(finding))),
        ("Try", escape(finding.tries)),
        ("Source", escape(finding.source)),
        ("See", link_to_plot(finding, figures, run)),
    ]
    listing = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows if value)
    follows = short_html([(f"{label}.{i}", f) for i, f in enumerate(finding.follows, 1)], figures, run)
    return (
        f'<article class="finding {finding.severity.lower()}" id="finding-{label}">\n<h3>{badge(finding.severity)} '
        f"{label} {escape(finding.title)}</h3>\n<p>{escape(finding.meaning)}</p>\n<dl>{listing}</dl>\n"
        + (f"<h4>It explains</h4>\n{follows}" if follows else "")
        + "</article>"
    )


def short_html(numbered: Sequence[tuple[str, findings.Finding]], figures: Figures, run: Run) -> str:
    """Findings as a list."""
    items = "".join(item_html(label, finding, figures, run) for label, finding in numbered)
    return f'<ul class="short">\n{items}</ul>\n' if items else ""


def item_html(label: str, finding: findings.Finding, figures: Figures, run: Run) -> str:
    """A finding in short."""
    facts = [findings.where(finding), findings.measured(finding)]
    tries = f" Try: {escape(finding.tries)}" if finding.tries else ""
    return (
        f'<li class="{finding.severity.lower()}" id="finding-{label}">{badge(finding.severity)} <strong>{label} '
        f"{escape(finding.title)}</strong> {escape('; '.join(x for x in facts if x))} "
        f'{link_to_plot(finding, figures, run)}<p class="small">{escape(finding.meaning)}{tries} '
        f"[{escape(finding.source)}]</p></li>\n"
    )


def link_to_plot(finding: findings.Finding, figures: Figures, run: Run) -> Html:
    """A link to the figure that a finding is marked in."""
    key = plot_key(finding, run)
    return Html(f'<a href="#{figures.places[key]}">plot of {escape(key[1])}</a>') if key in figures.places else Html()


# --- Scores, settings, time.


def header(run: Run, title: str) -> Html:
    """What was run, what it is to answer, how it ended and what came of it."""
    shape = next(iter(run.metrics.values())).shape
    summary = run.summary
    note = note_of(run)
    facts = [("Status", escape(status_of(run)))]
    if run.setting is not None:
        facts.append(("Part", escape(f"{setting_of(run)} of the run in {run.path}" if run.path else setting_of(run))))
    if not run.batched:
        facts.append(("Score", f"{escape(run.score)}: IQM {escape(interval_in_words(run.scores))}"))
    else:
        facts.append(("Settings", f"{shape[0]}, over {listed(run.batched)}"))
    facts.append(("Seeds", f"{shape[-2]} ({findings.ranges(run.seeds)})"))
    facts.append(("Updates", f"{shape[-1]:,} of {max(run.num_updates, shape[-1]):,}"))
    if "env_steps" in run.metrics:
        steps = float(np.max(run.metrics["env_steps"], initial=0, where=np.isfinite(run.metrics["env_steps"])))
        facts.append(("Steps of a seed", f"{steps:,.0f}"))
    if bad := summary.get("nonfinite"):
        named = [f"seed {x['seed']} at update {x['update']}" for x in bad[:5]]
        facts.append(("Non-finite", escape("; ".join(named) + f" and {len(bad) - 5} more" * (len(bad) > 5))))
    listing = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    question = f'<p class="note">{escape(note)}</p>' if note else ""
    return Html(f'<header>\n<h1>{escape(title)}</h1>\n{question}<dl class="facts">{listing}</dl>\n</header>')


def interval_in_words(scores: np.ndarray) -> str:
    """'500 [499, 500]': the IQM and its interval; failed seeds are said."""
    low, high = stats.iqm_interval(scores)
    failed = int((~np.isfinite(scores)).sum())
    between = f" [{plots.number(low)}, {plots.number(high)}]" if np.isfinite(low) else ""
    return f"{plots.number(stats.iqm(scores))}{between}" + (
        f", {failed} of {scores.size} seeds undefined" if failed else ""
    )


def status_of(run: Run) -> str:
    """How the run ended."""
    status = str(run.summary.get("status", "unknown"))
    if status == "killed" and run.path and is_held(run.path / "lock"):
        return "being trained"
    by = run.summary.get("stopped_by") if status == "interrupted" else None
    return f"{status} by {by}" if by else status


def is_held(lock: Path) -> bool:
    """Whether a living process holds a run's lock: the one that trains it."""
    if not fcntl:
        return False
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or the file system has none
        return False
    return False


def settings_scores(run: Run) -> Html:
    """The score of every setting, of a run with batched settings."""
    if not run.batched:
        return Html()
    rows = [
        [
            *(f"{run.config[name][i]:.4g}" for name in run.batched),
            interval_in_words(scores),
            plots.number(best),
            plots.number(worst),
        ]
        for i, (scores, best, worst) in enumerate(
            zip(run.scores, np.fmax.reduce(run.scores, 1), np.fmin.reduce(run.scores, 1), strict=True)
        )
    ]
    return table([*run.batched, f"{run.score}, IQM [95 % interval]", "best seed", "worst seed"], rows)


def settings_html(run: Run, job: "Job | str") -> Html:
    """All settings, those first that are not the agent's defaults."""
    defaults = defaults_of(job)
    changed = [name for name, x in run.config.items() if name in defaults and x != defaults[name]]
    rows: list[list[str]] = []
    for name in (*changed, *(name for name in run.config if name not in changed)):
        value, default = in_words(run.config[name]), in_words(defaults[name]) if name in defaults else "-"
        rows.append([Html(f"<strong>{escape(x)}</strong>") if name in changed else x for x in (name, value, default)])
    said = "Settings that are not the agent's defaults come first, in bold." if changed else "All are the defaults."
    sentence = said if defaults else "What the agent's defaults are is not known here."
    return Html(f"<p>{sentence}</p>") + table(["setting", "value", "default"], rows)


def defaults_of(job: "Job | str") -> dict[str, Any]:
    """The agent's default settings; none where they are not known."""
    from rlref.settings import plain

    if isinstance(job, str):
        return {}
    try:
        config = job.module.Config()
    except TypeError:  # somebody's own, with settings that have no defaults
        return {}
    return {name: plain(x) for name, x in vars(config).items()}


def in_words(x: Any) -> str:
    """A setting for reading."""
    return ", ".join(map(in_words, x)) if isinstance(x, list | tuple) else str(x)


def provenance(run: Run) -> Html:
    """Command, date, versions, devices, and where the time went."""
    if run.path is None:
        return Html("<p>The run was not kept in a folder.</p>") + times_html(run)
    try:
        about = read_about(run.path)
        environment = files.read_json(run.path / "environment.json")
    except UsageError as error:
        return Html(f"<p>{escape(error)}.</p>") + times_html(run)
    rows = [
        ["Command", " ".join(map(str, about.get("command") or ())) or "from Python"],
        ["Date", environment.get("date", "unknown")],
        ["Git commit", environment.get("git_commit") or "none"],
        ["Agent's file, SHA-256", about.get("source_sha256", "unknown")],
        ["Environment", about.get("env_params", "")],
        ["Platform", f"{environment.get('platform', 'unknown')}, Python {environment.get('python', 'unknown')}"],
        ["Devices", devices_in_words(environment.get("devices", []))],
        ["Versions", ", ".join(f"{name} {x}" for name, x in environment.get("versions", {}).items() if x)],
    ]
    rows += [
        [f"Resumed {once.get('date', '')}", " ".join(map(str, once.get("command") or ())) or "from Python"]
        for once in environment.get("resumed", [])
    ]
    return times_html(run, bool(environment.get("resumed"))) + table(
        ["", ""], [[name, x] for name, x in rows if x], headed=False
    )


def devices_in_words(devices: Sequence[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in collections.Counter(devices).items())


def times_html(run: Run, resumed: bool = False) -> Html:
    """Where the time went; of a run that was resumed, since then."""
    seconds = run.summary.get("seconds")
    if not isinstance(seconds, dict):
        names = {"compile_seconds": "compiling", "train_seconds": "training"}
        seconds = {name: run.summary[key] for key, name in names.items() if key in run.summary}
    seconds = {name: float(x) for name, x in seconds.items() if x is not None}
    total = sum(seconds.values())
    if not total > 0:
        return Html("<p>How long it took is not known.</p>")
    bars = {name: f'<span class="bar" style="width: {100 * x / total:.1f}%"></span>' for name, x in seconds.items()}
    rows = [[name, f"{x:.1f} s", Html(f"{x / total:.0%}{bars[name]}")] for name, x in seconds.items()]
    speed = run.summary.get("steps_per_second")
    since = "since it was last resumed" if resumed else "in all"
    said = f"<p>{total:,.1f} s {since}" + (f", {speed:,.0f} environment steps per second" if speed else "") + ".</p>"
    return Html(said) + table(["what", "time", "share"], rows)


# --- Where a trained seed goes.


def rebuilt(run: Run) -> "Job | str":
    """What the run trained; why not, where it cannot be rebuilt."""
    from rlref.runs.job import job_of_folder

    if run.trained is not None:
        return run.trained.job
    if run.path is None:
        return "it was not kept in a folder"
    try:
        return job_of_folder(run.path, **run.given)
    except Exception as error:  # an agent or an environment of somebody's own can raise anything
        return str(error) or type(error).__name__


def visits_of(run: Run, job: "Job") -> tuple[str, plots.Visits] | str:
    """What was played, in a sentence, and where it went; only a sentence where there is nothing to draw."""
    scores = run.scores if run.batched else run.scores[None]
    defined = np.isfinite(scores)
    best = int(np.nanargmax([stats.iqm(x) for x in scores])) if defined.any() else 0
    order = np.argsort(scores[best], kind="stable")  # undefined ones last
    seed = run.seeds[order[max(defined[best].sum() - 1, 0) // 2]]
    setting = best if run.batched else run.setting or 0
    try:
        space = job.env.observation_space(job.env_params)
        dimensions = 1 if hasattr(space, "n") else int(np.prod(space.shape))
        if dimensions > MAP_DIMENSIONS:
            return f"Maps are drawn of observations of at most {MAP_DIMENSIONS} numbers; these have {dimensions}."
        if run.trained is None:
            from rlref.runs import trained

            assert run.path is not None
            run.trained = trained.of_folder(run.path, **run.given)
        obs, value, name = played(run.trained, run.trained.row(seed, setting), seed)
    except Exception as error:  # as above
        return f"Not drawn: {str(error) or type(error).__name__}."
    finite = np.isfinite(obs).all(axis=1) & (True if value is None else np.isfinite(value))
    if not finite.any():
        return f"Not drawn: what seed {seed} sees, or its values, are not finite."
    which = f"setting {setting} ({setting_name(run, setting)})" if run.batched else setting_of(run)
    whose = f"{which}, seed {seed}" if which else f"seed {seed}"
    median = ", the median one by score," if defined[best].any() else ""
    sentence = (
        f"{MAP_EPISODES} episodes of at most {MAP_STEPS} steps with greedy actions of {whose}{median} as trained."
    )
    return sentence, plots.Visits(obs[finite], None if value is None else value[finite], hasattr(space, "n"), name)


def played(trained: "Trained", row: int, seed: int) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Greedy episodes of a row on the key of `seed`: what it saw `[N, D]`, and V, or max Q, there `[N]` with its name.

    None and '' in place of the values for an agent without any.
    """
    import jax
    import jax.numpy as jnp

    from rlref.runs import playing

    job = trained.job
    space = job.env.action_space(job.env_params)
    steps = min(int(playing.episode_limit(job.env_params)), MAP_STEPS)

    def episodes(config: Any, leaves: dict[str, Any], key: Any) -> dict[str, Any]:
        agent = job.make(config)
        state = trained.state(config, leaves)

        def episode(key: Any) -> Any:
            key, key_reset = jax.random.split(key)
            obs, env_state = job.env.reset(key_reset, job.env_params)

            def step(carry: Any, t: Any) -> Any:
                alive, obs, env_state = carry
                seen = {"alive": alive, "obs": obs}
                if agent.value is not None:
                    seen["value"] = agent.value(state, obs)
                action = playing.choose(agent.policy(state, obs), space, None)
                obs, env_state, _, terminated, truncated, _ = job.env.step(
                    jax.random.fold_in(key, t), env_state, action, job.env_params
                )
                return (alive & ~(terminated | truncated), obs, env_state), seen

            return jax.lax.scan(step, (jnp.bool(True), obs, env_state), jnp.arange(steps))[1]

        return jax.vmap(episode)(jax.random.split(key, MAP_EPISODES))

    seen = jax.device_get(jax.jit(episodes)(job.config_of(row), trained.of_row(row), jax.random.key(seed)))
    alive = seen["alive"]  # `[episodes, steps]`
    obs = np.asarray(seen["obs"][alive], np.float64).reshape(alive.sum(), -1)
    if "value" not in seen:
        return obs, None, ""
    value = np.asarray(seen["value"][alive], np.float64)
    return (obs, value, "V") if value.ndim == 1 else (obs, value.max(axis=1), "max Q")


# --- Several runs side by side.


def of_methods(
    methods: Sequence[compare.Method], references: Mapping[str, float] | None
) -> tuple[str, str, list[plots.Picture]]:
    """Title, body and figures of the report of several runs."""
    title = f"Comparison: {', '.join(method.label for method in methods)}"
    environments = list(dict.fromkeys(name for method in methods for name in method.runs))
    sections = [
        Html(f"<header>\n<h1>{escape(title)}</h1>\n<p>{listed(environments)}</p>\n</header>"),
        section("Runs", runs_table(methods)),
    ]
    pictures: list[plots.Picture] = []
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
            plots.Group(m.label, run.metrics if run else {}, run.seeds if run else [])
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


def runs_table(methods: Sequence[compare.Method]) -> Html:
    """What each run is, how it ended, and what the verdicts say of it."""
    rows: list[list[str]] = []
    for i, method in enumerate(methods):
        for environment, run in method.runs.items():
            severity, sentence = lead(run.diagnose())
            shape = next(iter(run.metrics.values())).shape
            about = [environment, run.agent, str(len(run.seeds)), f"{shape[-1]:,}", status_of(run)]
            verdict = Html(f'<span class="{severity.lower() or "healthy"}">{badge(severity)}</span> {escape(sentence)}')
            colour = f"var(--series-{i % len(plots.SERIES)})"
            name = Html(f'<span style="color: {colour}" aria-hidden="true">■</span> {escape(method.label)}')
            rows.append([name, *about, interval_in_words(run.scores), verdict])
    names = ["run", "environment", "agent", "seeds", "updates", "status", "score, IQM [95 % interval]", "verdict"]
    return table(names, rows)


def tables_html(comparison: compare.Comparison) -> tuple[Html, Html]:
    """The comparison's numbers, and the settings that differ."""
    numbers, differing = Html(), Html()
    for one in compare.tables(comparison):
        if not one.rows:
            continue
        names = list(one.rows[0])
        content = table(names, [[row[name] for name in names] for row in one.rows])
        if "setting" in names:
            differing = content
        else:
            numbers += f"<h3>{escape(one.title)}</h3>\n{content}\n"
    return numbers, differing


def differing_html(methods: Sequence[compare.Method]) -> Html:
    """The settings that are not the same in all runs."""
    each = [run for method in methods for run in method.runs.values()]
    names = dict.fromkeys(name for run in each for name in run.config)
    rows = [[name, *(in_words(run.config.get(name, "-")) for run in each)] for name in names]
    labels = [f"{method.label}, {environment}" for method in methods for environment in method.runs]
    differ = [row for row in rows if len(set(row[1:])) > 1]
    return table(["setting", *labels], differ) if differ else Html()


# --- Words and HTML.


def agent_name(run: Run) -> str:
    return run.agent.upper() if run.agent in NAMES else run.agent


def environment_name(run: Run) -> str:
    """The environment's id; of one given from Python, its class."""
    about = about_of(run)
    return str(about.get("env") or run.config.get("env_id", "an environment"))


def name_of(run: Run) -> str:
    return run.path.name if run.path else run.agent


def note_of(run: Run) -> str:
    """The question that the run is to answer."""
    return str(about_of(run).get("note") or "")


def about_of(run: Run) -> dict[str, Any]:
    """What the run's folder says of it; nothing where it has none, or cannot be read."""
    try:
        return read_about(run.path) if run.path else {}
    except UsageError:
        return {}


def escape(text: object) -> str:
    """Text for HTML; what is HTML already stays."""
    return text if isinstance(text, Html) else html.escape(str(text))


def listed(names: Iterable[str]) -> str:
    return escape(", ".join(names))


def section(title: str, content: str, anchor: str = "") -> Html:
    """A section with a heading; nothing without content. Its id is its title without `anchor`."""
    anchor = anchor or re.sub(r"\W+", "-", title.lower()).strip("-")
    return Html(f'<section id="{anchor}">\n<h2>{escape(title)}</h2>\n{content}\n</section>' if content else "")


def folded(title: str, content: str) -> Html:
    """A section that is closed at first; on paper it is open."""
    return Html(f"<details>\n<summary><h2>{escape(title)}</h2></summary>\n{content}\n</details>" if content else "")


def grid(figures: Iterable[str]) -> Html:
    """Figures beside each other, as many as there is room for."""
    content = "\n".join(figures)
    return Html(f'<div class="grid">\n{content}\n</div>' if content else "")


def table(names: Sequence[str], rows: Iterable[Sequence[str]], headed: bool = True) -> Html:
    """A table that scrolls in its own box where it is too wide; without `headed` its rows have headings instead."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(cell(x, i == 0 and not headed) for i, x in enumerate(row))}</tr>\n" for row in rows)
    thead = f"<thead><tr>{head}</tr></thead>\n" if headed else ""
    return Html(f'<div class="scroll" tabindex="0"><table>\n{thead}<tbody>\n{body}</tbody>\n</table></div>')


def cell(text: str, heading: bool) -> str:
    """A cell of a table; a long text may be broken into lines."""
    if heading:
        return f'<th scope="row">{escape(text)}</th>'
    kind = ' class="long"' if len(re.sub("<[^>]*>", "", text)) > 45 else ""
    return f"<td{kind}>{escape(text)}</td>"
