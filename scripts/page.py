"""Putting what a script made into a page between two marks, `<!-- NAME -->` and `<!-- end of NAME -->`."""

from pathlib import Path


def put(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of `name`; where there is no page yet, it is made of these alone."""
    begin, end = marks(name)
    before, rest = page.read_text().split(begin) if page.exists() else ("", f"{end}\n")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")


def read(page: Path, name: str) -> str:
    """What stands between the marks of `name`."""
    begin, end = marks(name)
    return page.read_text().split(begin)[1].split(end)[0].strip("\n") + "\n"


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"
