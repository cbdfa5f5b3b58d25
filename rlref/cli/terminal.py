"""What several commands print: the progress of a training, findings, tables."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlref.errors import Stopped

if TYPE_CHECKING:
    from rlref.health.engine import Diagnosis


COLOURS = {"ERROR": "bold red", "WARN": "yellow", "INFO": "cyan", "": ""}


class Terminal:
    """Progress on a terminal: what is compiled and for how long, then a bar with the live diagnostics."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        self.console = Console(stderr=True)
        self.bar = progress.Progress(
            progress.TextColumn("training"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("ETA"),
            progress.TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task("", total=None)
        self.diagnostics, self.verdict = Text(), Text()
        self.told_of_compiling = False
        self.next_verdict = 0.0  # when to ask for one again
        self.live = Live(Group(self.bar, self.diagnostics, self.verdict), console=self.console)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        started = self.live.is_started
        self.live.stop()
        if started and not self.console.is_terminal:
            self.console.print()  # where it cannot redraw, rich leaves the last line open

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True, markup=False)

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        from rich import progress

        if not self.told_of_compiling:
            self.say(compiling_takes("some ten seconds"))
            self.told_of_compiling = True
        columns = (progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
        with progress.Progress(*columns, console=self.console) as bar:
            bar.add_task(f"XLA compiles {what}", total=None)
            yield

    def progress(self, done: int, total: int, metrics: dict[str, Any], verdict: "Callable[[], Diagnosis]") -> None:
        from rlref.runs import display

        self.live.start()
        self.bar.update(self.task, completed=done, total=total)
        self.diagnostics.plain = display.in_numbers(metrics)
        if (now := time.monotonic()) > self.next_verdict or done == total:
            severity, self.verdict.plain = display.leading(verdict())
            self.verdict.style = COLOURS[severity] or "green"
            self.next_verdict = display.next_verdict(now)


def compiling_takes(how_long: str) -> str:
    """How long compiling takes, and when; true as well where it comes from the cache already, which is not known."""
    from rlref.runs import compiling

    later = "the first time, then comes from the cache" if compiling.is_kept() else "at every start"
    return f"compiling takes {how_long} {later}"


@contextlib.contextmanager
def progress_of_several(as_json: bool, folder: Path) -> Iterator[Any]:
    """Show the progress of several trainings one after the other, and how to go on where they are stopped."""
    from rlref.runs.display import Silent

    terminal = None if as_json else Terminal()
    try:
        with terminal or contextlib.nullcontext():
            yield terminal or Silent()
    except Stopped as stopped:
        how = f"what was reached is kept: the same command with --run-dir {folder} goes on"
        print(f"stopped by {stopped}; {how}", file=sys.stderr)
        raise


def plain_console() -> Any:
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 200  # in a file or a pipe, no line of a table is broken
    return Console(highlight=False, soft_wrap=True, markup=False, width=wide)


def print_verdict(console: Any, verdict: "Diagnosis", only: Sequence[str] = ("ERROR", "WARN", "INFO")) -> None:
    """One sentence, then the findings, of those that are as bad as `only` says."""
    from rlref.health import findings

    count = f"{len(verdict.checked)} checks"
    worst = verdict.above_info
    if worst:
        console.print(f"{count}; above all: {worst[0].title}. {worst[0].meaning}", style="bold", markup=False)
    elif verdict.checked:
        console.print(f"{count}: healthy", style="green")
    else:
        console.print("nothing could be checked", style="yellow")
    for severity, line in findings.lines([f for f in verdict.findings if f.worst in only]):
        console.print(line, style=COLOURS[severity], markup=False)


def print_warnings(console: Any, warnings: Sequence[str]) -> None:
    for text in warnings:
        console.print(f"warning: {text}", style="yellow")


def print_tables(console: Any, tables: Sequence[Any]) -> None:
    """Tables that are a title and rows of the same columns."""
    from rich.table import Table

    for title, rows in tables:
        if not rows:
            continue
        table = Table(*rows[0], box=None, title=title, title_justify="left", title_style="")
        for row in rows:
            table.add_row(*(str(x) for x in row.values()))
        console.print(table)


def exit_code(signal: str) -> int:
    """Of a training that a signal stopped."""
    return 143 if signal == "SIGTERM" else 130
