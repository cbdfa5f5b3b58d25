"""The report of a run, or of several side by side: one HTML page that needs nothing else.

    report.write(rlref.load("runs/mine"))            runs/mine/report.html; or: rlref report runs/mine
    report.write_comparison(methods.read(["runs/a", "runs/b"]), Path("comparison.html"))

The page embeds its style and its figures (SVG), loads nothing, and is readable on a phone, in dark mode and in print.
Text that comes from the user (notes, ids, settings) is escaped.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlref.errors import UsageError
from rlref.reports.comparison_page import page_of_methods
from rlref.reports.figure_data import Picture
from rlref.reports.figure_parts import style
from rlref.reports.markup import check_target, page
from rlref.reports.methods import Method
from rlref.reports.run_page import page_of_run
from rlref.reports.svg import save
from rlref.runs import files
from rlref.runs.run import Run


def write(run: Run, out: Path | None = None, pictures: Path | None = None) -> Path:
    """Write the report of one run; returns its path.

    Args:
      run: the run.
      out: the page; by default report.html in the run's folder, or report-setting-2.html for setting 2 alone.
      pictures: a folder to save every figure in as PNG and SVG; by default they are not saved.

    Raises UsageError if there is no place to write to, or the file there is not a report.
    """
    if out is None:
        if run.path is None:
            raise UsageError("this run was not kept in a folder: say where its report is to go, as out=report.html")
        out = run.path / ("report.html" if run.setting is None else f"report-setting-{run.setting}.html")
    return _write(Path(out), pictures, lambda: page_of_run(run))


def write_comparison(
    methods: Sequence[Method],
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
    return _write(Path(out), pictures, lambda: page_of_methods(methods, references))


def _write(out: Path, pictures: Path | None, made: Callable[[], tuple[str, str, list[Picture]]]) -> Path:
    """Make a page, and write it and its figures."""
    check_target(out)
    with style():
        title, body, drawn = made()
        # A folder's name may be invalid Unicode.
        text = page(title, body).encode(errors="backslashreplace")
        try:
            files.write(out, lambda file: file.write(text))
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror or error}") from error
        if pictures is not None:
            for picture in drawn:
                save(picture, Path(pictures))
    return out
