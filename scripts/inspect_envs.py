"""What `rlref inspect` finds in every environment: `python scripts/inspect_envs.py [SUITE ...] [ENV ...]`.

    python scripts/inspect_envs.py                    gymnax's, in about two minutes on two cores
    python scripts/inspect_envs.py brax jumanji       all that these suites list, which have to be installed; for hours
    python scripts/inspect_envs.py CartPole-v1        prints the row of this one, and writes nothing

Writes scripts/results/inspect.json, and the tables in inspect.md, a line per environment, each inspected in a process
of its own. Stopped, it goes on where it was: a row is made again only with --again.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import page

from rlref.envs import list_envs
from rlref.envs.suites import SUITES
from rlref.inspection.inspect import inspect

RESULTS = Path(__file__).resolve().parent / "results"
EPISODES, EPISODES_OF_OTHERS = 100, 20  # of a random policy: gymnax's own, other suites'
TIME_LIMIT = 600  # seconds of one environment


def episodes_of(suite: str) -> int:
    return EPISODES if suite == "gymnax" else EPISODES_OF_OTHERS


def row_of(env_id: str, episodes: int) -> list[str]:
    """An environment's cells: its spaces, what a random policy meets, the names of the findings."""
    one = inspect(env_id, episodes=episodes)
    s = one.statistics
    cells = [s.get("observation_space", ""), s.get("action_space", "")]
    if s.get("return"):
        total, target = s["return"], s["value_target"]
        cells.append(f"{total['mean']:.4g} ({total['min']:.4g} to {total['max']:.4g})")
        cells += [f"{s['length']['mean']:.4g}", f"{s['terminated']:.0%}"]
        cells.append(f"{max(abs(target['min']), abs(target['max'])):.4g}")
    else:
        cells += [""] * 4
    return [*cells, ", ".join(f"{f.severity} {f.check}" for f in one.findings)]


def in_a_process(env_id: str, episodes: int) -> list[str]:
    """The same, in a process of its own: a fault of one, or a hang, leaves the others be."""
    command = [sys.executable, __file__, "--row", env_id, str(episodes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=True)
    except subprocess.TimeoutExpired:
        return [""] * 6 + [f"not done after {TIME_LIMIT} s"]
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"ended with {error.returncode}"]
        said = last[0].removeprefix(f"rlref.errors.UsageError: {env_id} ").replace("|", "/")
        return [""] * 6 + [said.replace(sys.prefix, "")]
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: dict[str, list[str]]) -> str:
    """A line per environment."""
    head = ["environment", "observations", "actions", "return: mean (min to max)", "length", "ends terminated",
            "largest target", "findings"]  # fmt: skip
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *([name, *cells] for name, cells in rows.items()))]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def report(found: dict[str, dict[str, list[str]]]) -> str:
    """gymnax's table, then the other suites', folded."""
    parts = ["What `rlref inspect` finds, by scripts/inspect_envs.py."]
    for suite, rows in found.items():
        text = f"{episodes_of(suite)} episodes each.\n\n{table(rows)}"
        if suite == "gymnax":
            parts.append(text)
        else:
            parts.append(f"<details><summary>{suite}: {len(rows)} environments</summary>\n\n{text}\n\n</details>")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="suites, or environments")
    parser.add_argument("--again", action="store_true", help="make rows again that are there")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(row_of(options.row[0], int(options.row[1]))))
        return
    wanted: dict[str, list[str]] = {}
    single = [name for name in options.names if name not in (*SUITES, "gymnax")]
    for suite in [name for name in options.names or ["gymnax"] if name not in single]:
        wanted[suite] = [row.env_id for row in list_envs(suite, made=0)]

    path = RESULTS / "inspect.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if single:
            rows = pool.map(lambda x: in_a_process(x, EPISODES), single)
            print(table(dict(zip(single, rows, strict=True))))
        for suite, names in wanted.items():
            old = {} if options.again else found.get(suite, {})
            new = [x for x in names if x not in old]
            cells_of = functools.partial(in_a_process, episodes=episodes_of(suite))
            for env_id, cells in zip(new, pool.map(cells_of, new), strict=True):
                print(f"{env_id}: {cells[-1]}", flush=True)
                old[env_id] = cells
                found[suite] = {x: old[x] for x in names if x in old}
                path.write_text(json.dumps(found, indent=1) + "\n")
                page.put(path.with_suffix(".md"), "inspect", report(found))


if __name__ == "__main__":
    main()
