"""Putting tables into a README between two marks, `<!-- NAME -->` and `<!-- end of NAME -->`."""

from pathlib import Path


def put(readme: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of `name`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = readme.read_text().split(begin)
    readme.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")
