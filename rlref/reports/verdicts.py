"""The verdicts on a page: findings with their numbers, and links to the plots that show them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rlref.health import findings
from rlref.reports import plots
from rlref.reports.figures import Figures, Key, spreads_of
from rlref.reports.markup import Html, badge, escape, listed
from rlref.runs.run import Run

if TYPE_CHECKING:
    from rlref.health.engine import Diagnosis

UNNAMED = {  # check -> the metric that its plot shows, where `Finding.what` names none
    "first_ratio_off": "first_ratio_error",
    "no_signal": "return_mean",
    "sample_age_off": "sample_age",
    "undiscounted_without_ends": "episodes",
}


def number_findings(found: Iterable[findings.Finding], under: str = "") -> Iterator[tuple[str, findings.Finding]]:
    """Every finding with its number: 1, 2; those that finding 1 explains have 1.1, 1.2."""
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
    """The figure that a finding is marked in: of a metric, or of a quantity with its mean, std, min and max."""
    name = metric_of(finding, run.metrics, run.score)
    what, _, part = name.rpartition("_")
    spread = name != run.score and part in plots.PARTS and what in spreads_of(run.metrics)
    return ("spread", what) if spread else ("plot", name)


def leading_sentence(diagnosis: "Diagnosis") -> tuple[str, str]:
    """The worst severity ('' for none above INFO) and one sentence, as `rlref diagnose` has them."""
    worst = diagnosis.above_info
    if worst:
        return worst[0].worst, f"{worst[0].title}. {worst[0].meaning}"
    return "", "Healthy." if diagnosis.checked else "Nothing could be checked."


def verdicts_html(
    diagnosis: "Diagnosis", numbered: Sequence[tuple[str, findings.Finding]], figures: Figures, run: Run
) -> Html:
    """The leading sentence, the findings, and what was not checked."""
    severity, sentence = leading_sentence(diagnosis)
    parts = [f'<p class="lead {severity.lower() or "healthy"}">{badge(severity)} {escape(sentence)}</p>']
    top = {label: f for label, f in numbered if "." not in label}
    # In full: errors and warnings. In short: INFO, and all findings of a run with batched settings.
    full = [label for label, f in top.items() if f.worst != "INFO" and not run.batched]
    parts += [finding_html(label, top[label], figures, run) for label in full]
    parts.append(short_html([(label, f) for label, f in numbered if label.partition(".")[0] not in full], figures, run))
    reasons: dict[str, list[str]] = {}
    for name, why in diagnosis.unchecked.items():
        reasons.setdefault(why, []).append(name)
    parts.append(f'<p class="small">{len(diagnosis.checked)} checks were made.')
    parts += [f" Not checked, for want of {escape(why)}: {listed(names)}." for why, names in reasons.items()]
    return Html("\n".join(parts) + "</p>")


def finding_html(label: str, finding: findings.Finding, figures: Figures, run: Run) -> str:
    """A finding in full, with those that it explains."""
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
