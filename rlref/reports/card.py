"""A run as a notebook shows it: what it is, its verdict, its score, and one curve."""

import base64
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from PIL import Image

from rlref.health import findings
from rlref.reports import plots
from rlref.reports.facts import agent_name, environment_name, interval_in_words, setting_of, status_of
from rlref.reports.figure_data import Picture
from rlref.reports.figure_parts import style
from rlref.reports.markup import Html, badge, escape, table
from rlref.reports.run_page import groups_of
from rlref.reports.verdicts import leading_sentence
from rlref.runs.run import Run

if TYPE_CHECKING:
    from rlref.health.engine import Diagnosis

MOST_FINDINGS = 3
DPI = 120


def card(run: Run) -> str:
    """HTML of less than 100 kB that needs no style sheet: a PNG inside, as GitHub shows no SVG in a notebook."""
    shape = next(iter(run.metrics.values())).shape
    settings = f"{shape[0]} settings over {', '.join(run.batched)}, " if run.batched else ""
    what = ", ".join(x for x in (f"{agent_name(run)} on {environment_name(run)}", setting_of(run)) if x)
    size = f"{settings}{shape[-2]} seed{'s' * (shape[-2] != 1)}, {shape[-1]:,} of {run.num_updates:,} updates"
    groups, left_out = groups_of(run)
    with style():
        drawn = plots.curve(run.score, groups)
        curve = picture(drawn) if drawn else f"<p>No {escape(run.score)} is defined: there is no curve.</p>"
    if run.batched:
        rows = [[group.label, interval_in_words(group.scores)] for group in groups]
        scores = table(["setting", f"{run.score}: IQM [95 % interval]"], rows) + left_out
    else:
        scores = Html(f"<p>{escape(run.score)}: IQM {escape(interval_in_words(run.scores))}</p>")
    parts = [f"<p><b>{escape(what)}</b>: {escape(status_of(run))}, {escape(size)}</p>", *verdict(run.diagnose())]
    return "\n".join(["<div>", *parts, scores, curve, "</div>"])


def verdict(diagnosis: "Diagnosis") -> Iterator[str]:
    """One sentence, and the first findings above INFO."""
    severity, sentence = leading_sentence(diagnosis)
    made = f" {len(diagnosis.checked)} checks were made." if diagnosis.checked else ""
    yield f"<p>{badge(severity)} {escape(sentence)}{made}</p>"
    worst = diagnosis.above_info
    if worst:
        tries = [f" Try: {f.tries}." if f.tries else "" for f in worst]
        items = [f"<li>{escape(findings.sentence(f) + '.' + t)}</li>" for f, t in zip(worst, tries, strict=True)]
        yield f"<ul>{''.join(items[:MOST_FINDINGS])}</ul>"
    if len(worst) > MOST_FINDINGS:
        yield f"<p>{len(worst) - MOST_FINDINGS} more: run.diagnose().findings</p>"


def picture(drawn: Picture) -> str:
    """A figure as a PNG in the page."""
    file, smaller = io.BytesIO(), io.BytesIO()
    drawn.figure.savefig(file, dpi=DPI, facecolor="white")
    Image.open(file).convert("RGB").quantize(64).save(smaller, "PNG", optimize=True)  # a third of the bytes
    width = round(drawn.figure.get_figwidth() * 100)
    data = base64.b64encode(smaller.getvalue()).decode()
    return f'<img width="{width}" alt="{escape(drawn.alt)}" src="data:image/png;base64,{data}">'
