"""What the README shows: `python scripts/front_door.py [NAME ...]`, without a name all of it.

    table      the five rows at its head, of scripts/results/scores.json
    probe      `rlref probe` on a copy of ppo.py with one line changed, as a terminal shows it
    diagnose   a training at 280 times the default learning rate, its score, and `rlref diagnose` on it, likewise
    report     scripts/results/report.png: that run's report, as a browser shows it (Chromium or Chrome must be there)

Each goes between its marks in the README. About two minutes on two cores.
"""

import argparse
import difflib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import page
import scores
from mutants import PPO, plant

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ROWS = ("ppo/CartPole-v1", "dqn/CartPole-v1", "cem/CartPole-v1", "ppo/Breakout-MinAtar", "ppo/gymnasium:HalfCheetah-v5")
(BUG,) = (one for one in PPO if one.name == "no bootstrap at truncation")
PROBES = ("rlref probe ./my_ppo.py --fail-fast", "rlref probe ./my_ppo.py --only truncation_pair")
SICK = "rlref train ppo --learning-rate 0.07 --total-timesteps 100000 --run-dir runs/sick"
DIAGNOSE = "rlref diagnose runs/sick"
REPORT = "rlref report runs/sick"
SHOWN = 9  # lines of what is found
PICTURE = ROOT / "scripts" / "results" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def table() -> str:
    """The five rows: an agent, what it reached, and the command that trains it."""
    results = json.loads((ROOT / "scripts" / "results" / "scores.json").read_text())
    columns = ("command", "IQM [95 % interval]", "mean ± std", "worst seed", "published elsewhere", "seeds x steps")
    lines = ["| | " + " | ".join(columns[1:]) + " |", "|" + "---|" * len(columns)]
    for name in ROWS:
        cells = scores.cells(name, results[name])
        if theirs := cells["Tianshou's"]:
            best = f"at its best evaluation Tianshou {theirs} (v3), this one {cells['best, sampled']}"
            cells["published elsewhere"] += f"; {best}"
        lines.append("| " + " | ".join(cells[column] for column in columns) + " |")
    return "\n".join(lines) + "\n"


def probe(folder: Path) -> str:
    """The broken copy's line, and what the probes say of it."""
    source = (ROOT / "rlref" / "ppo.py").read_text()
    broken = plant(BUG.name, source, [(BUG.old, BUG.new)])
    (folder / "my_ppo.py").write_text(broken)
    _, _, _, *changed = difflib.unified_diff(source.splitlines(), broken.splitlines(), n=0, lineterm="")
    diff = "\n".join(changed)
    printed = "\n".join(page.printed(command, folder) for command in PROBES)
    return f"```diff\n{diff}\n```\n\n```text\n{printed}```\n"


def diagnose(folder: Path) -> str:
    """The run's score, and what is said of it: what leads, and some of what it explains, without what is INFO alone."""
    command, *said = page.printed(SICK, folder).splitlines()
    score = next(i for i, line in enumerate(said) if " IQM " in line)
    about, *found = page.printed(DIAGNOSE, folder).splitlines()
    found = [line for line in found if "It explains: INFO" not in line]
    lines = [command, "[...]", *said[score : score + 2], "[...]", about, *found[:SHOWN], "[...]"]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def report(folder: Path) -> None:
    """A picture of the report's first screens."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"the report's picture takes a browser: {', '.join(BROWSERS)}; none of them is installed")
    if not (folder / "runs" / "sick").exists():
        page.printed(SICK, folder)
    page.printed(REPORT, folder)
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--window-size=1000,1900"]
    to = f"--screenshot={PICTURE}"
    written = folder / "runs" / "sick" / "report.html"
    subprocess.run([browser, *options, to, written.as_uri()], check=True, timeout=120, capture_output=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("table", "probe", "diagnose", "report")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    chosen = parser.parse_args(arguments).names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "table" in chosen:
            page.put(README, "table", table())
        if "probe" in chosen:
            page.put(README, "probe", probe(folder))
        if "diagnose" in chosen:
            page.put(README, "diagnose", diagnose(folder))
        if "report" in chosen:
            report(folder)


if __name__ == "__main__":
    main()
