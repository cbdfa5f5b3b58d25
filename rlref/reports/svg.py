"""Export of matplotlib figures: as SVG for a page, where the style sheet chooses the colours, and as files."""

import html
import io
import re
from pathlib import Path

from matplotlib.figure import Figure

from rlref.errors import UsageError
from rlref.reports.figure_data import Picture
from rlref.reports.figure_parts import VARIABLES


def inline(picture: Picture) -> str:
    """The figure as an `<svg>` for a page: `alt` as its accessible label, colours from the page's style sheet."""
    text = svg_of(picture.figure, transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    for hexadecimal, variable in VARIABLES.items():
        text = text.replace(hexadecimal, f"var({variable})")
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"', "", text).replace("xlink:href", "href")
    text = re.sub(r"font-size: ([\d.]+)px; font-family: [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r'(?<= d=")[^"]*', lambda d: shorter_path(d[0]), text)
    text = unique_ids(text, picture.name)
    text = re.sub(r"\s*\n\s*", "\n", text)
    label = html.escape(picture.alt)
    box = re.search('viewBox="[^"]*"', text)
    assert box
    return f'<svg {box[0]} role="img" aria-label="{label}">{text[text.index(">") + 1 :]}'


def svg_of(figure: Figure, transparent: bool) -> str:
    """A figure as an SVG file."""
    file = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(file, format="svg", facecolor="none" if transparent else "white", metadata=nothing)
    return file.getvalue()


def shorter_path(path: str) -> str:
    """A path with coordinates rounded to a tenth of a point, which keeps the page small."""
    path = re.sub(r"-?\d+\.\d+", lambda x: f"{float(x[0]):.1f}".removesuffix(".0"), path)
    path = re.sub(r"\s+", " ", path).strip()
    return path if re.search("[A-KN-Y]", path) else path.replace(" L ", " ")  # after M, a line is meant without L


def unique_ids(svg: str, name: str) -> str:
    """Prefix ids that are referred to with `name`, and drop all others, as a page holds many figures."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda x: f' id="{name}-{x[1]}"' if x[1] in used else "", svg)
    return re.sub(r'(url\(#|href="#)([^)"]+)', rf"\g<1>{name}-\g<2>", svg)


def save(picture: Picture, folder: Path) -> list[Path]:
    """Write a figure as PNG and SVG. Raises UsageError if it cannot be written."""
    paths = [folder / f"{picture.name}.png", folder / f"{picture.name}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        picture.figure.savefig(paths[0], dpi=160, facecolor="white")
        paths[1].write_text(svg_of(picture.figure, transparent=False), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from error
    return paths
