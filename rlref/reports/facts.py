"""What a page says in words and tables: scores, settings, machine and time."""

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlref import stats
from rlref.contract import AGENTS
from rlref.errors import UsageError
from rlref.health import findings
from rlref.reports.captions import number
from rlref.reports.markup import Html, escape, listed, table
from rlref.runs import files
from rlref.runs.folder import read_about
from rlref.runs.run import Run

if TYPE_CHECKING:
    from rlref.runs.job import Job


def setting_name(run: Run, i: int) -> str:
    return ", ".join(f"{name} {run.config[name][i]:.4g}" for name in run.batched)


def setting_of(run: Run) -> str:
    """Which of several settings a run is, in words; '' for a whole run."""
    return "" if run.setting is None else f"setting {run.setting}"


def header(run: Run, title: str) -> Html:
    """The head of a page: what was run, its question, its status, score and size."""
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
    """'500 [499, 500]': the IQM and its interval, and the number of failed seeds if there are any."""
    low, high = stats.iqm_interval(scores)
    failed = int((~np.isfinite(scores)).sum())
    between = f" [{number(low)}, {number(high)}]" if np.isfinite(low) else ""
    return f"{number(stats.iqm(scores))}{between}" + (f", {failed} of {scores.size} seeds undefined" if failed else "")


def status_of(run: Run) -> str:
    """How the run ended."""
    status = str(run.summary.get("status", "unknown"))
    by = run.summary.get("stopped_by") if status == "interrupted" else None
    return f"{status} by {by}" if by else status


def settings_scores(run: Run) -> Html:
    """The score of every setting, of a run with batched settings."""
    if not run.batched:
        return Html()
    rows = [
        [
            *(f"{run.config[name][i]:.4g}" for name in run.batched),
            interval_in_words(scores),
            number(best),
            number(worst),
        ]
        for i, (scores, best, worst) in enumerate(
            zip(run.scores, np.fmax.reduce(run.scores, 1), np.fmin.reduce(run.scores, 1), strict=True)
        )
    ]
    return table([*run.batched, f"{run.score}, IQM [95 % interval]", "best seed", "worst seed"], rows)


def settings_html(run: Run, job: "Job | str") -> Html:
    """All settings, beginning with those that differ from the agent's defaults."""
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
    except TypeError:  # a custom agent with settings that have no defaults
        return {}
    return {name: plain(x) for name, x in vars(config).items()}


def in_words(x: Any) -> str:
    """A setting for reading."""
    return ", ".join(map(in_words, x)) if isinstance(x, list | tuple) else str(x)


def provenance_html(run: Run) -> Html:
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
    """Where the time went; for a resumed run, since it was last resumed."""
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


def agent_name(run: Run) -> str:
    return run.agent.upper() if run.agent in AGENTS else run.agent


def environment_name(run: Run) -> str:
    """The environment's id; the name of its class if it was given from Python."""
    about = about_of(run)
    return str(about.get("env") or run.config.get("env_id", "an environment"))


def label_of(run: Run) -> str:
    return run.path.name if run.path else run.agent


def note_of(run: Run) -> str:
    """The question that the run is to answer."""
    return str(about_of(run).get("note") or "")


def about_of(run: Run) -> dict[str, Any]:
    """The description in the run's folder; empty if there is none, or it cannot be read."""
    try:
        return read_about(run.path) if run.path else {}
    except UsageError:
        return {}
