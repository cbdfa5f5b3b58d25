"""The page as HTML: its frame, sections, tables, and which files it may replace."""

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlref.errors import UsageError

GENERATOR = '<meta name="generator" content="rlref report">'


SYMBOLS = {"ERROR": "✖", "WARN": "▲", "INFO": "●"}


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


def check_target(out: Path) -> None:
    """Raise UsageError if `out` exists and is not a report, or its folder does not exist."""
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


def badge(severity: str) -> Html:
    """A severity as a symbol and a word."""
    return Html(f'<span class="badge">{SYMBOLS.get(severity, "✔")} {severity or "OK"}</span>')


def escape(text: object) -> str:
    """Text for HTML; what is HTML already stays."""
    return text if isinstance(text, Html) else html.escape(str(text))


def listed(names: Iterable[str]) -> str:
    return escape(", ".join(names))


def section(title: str, content: str, anchor: str = "") -> Html:
    """A section with a heading; '' without content. Its id is `anchor`, by default made from the title."""
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
    """A table that scrolls in its own box if it is too wide; if not `headed`, each row's first cell is a heading."""
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
