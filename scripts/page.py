"""Putting what a script made into a page between two marks, `<!-- NAME -->` and `<!-- end of NAME -->`."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 120  # letters of the terminal


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


def printed(command: str, folder: Path) -> str:
    """`$ rlref ...`, run in `folder`, and what it prints, as a terminal of `WIDTH` letters shows it.

    Raises CalledProcessError if it ends with another exit code than 0, and 1 and 3, which say that something was found.
    """
    arguments = [sys.executable, "-m", "rlref.cli", *command.split()[1:]]
    environment = os.environ | {"COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    if done.returncode not in (0, 1, 3):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return f"$ {command}\n" + "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
