"""What share of planted bugs do the probes catch, and do they name the right component?

    python scripts/mutation_score.py                  all bugs, and the agents themselves
    python scripts/mutation_score.py --agent dqn      those of one agent
    python scripts/mutation_score.py --trained        all bugs, by the trained rungs alone
    python scripts/mutation_score.py --renamed        all bugs, by behaviour alone
    python scripts/mutation_score.py --sample 6 --seed 0      a few, evenly from the agents; nothing is written
    python scripts/mutation_score.py --sample 30 --jobs 1     how soon the first check fails, what is compiled kept

Plants each bug of scripts/mutants.py in a copy of the agent's file and asks `rlref probe COPY --fail-fast`, as its
owner would: oracles first, then the ladder, up to the first failure. A bug is localised if that check isolates the
component that the bug is in. The agents themselves must pass, on three sets of 64 seeds.

With --renamed every name in the copy is another (scripts/renamed.py), but for those of the contract: then no oracle can
be asked that calls a function of the file or reads a field of its state, as of a file that somebody else has written.
The ladder is trained only where no oracle fails, so that DIFFERS may be WRONG on a rung.

Writes scripts/results/mutation_score.json and the table in probes/planted_bugs.md. Stopped, it goes on where it was: a
row is made again only if the bug, the agent or what found it has changed since. Of the same file only those checks are
asked again that have changed: where none of them failed, or fails now, the row stands, with the seconds of the whole.
"""

import argparse
import ast
import concurrent.futures
import functools
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from mutants import COMPONENTS, METHODS, MUTANTS, Mutant, plant
from mutants_rnn import COMPONENTS_RNN, METHODS_RNN, PPO_RNN
from renamed import renamed

from probes.changes import between, nodes, reached, without_docstrings
from probes.check import checks_for
from probes.ladder import LADDER
from probes.memory import MEMORY
from probes.oracles import MEMORY_ORACLES, ORACLES, Oracle
from probes.oracles.base import LIKENESS
from probes.verdict import CAUGHT_BY
from rlref.runs import files

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "scripts" / "results" / "mutation_score.json"
CHECKS = ROOT / "scripts" / "results" / "checks.json"  # what rows of all scripts were asked
PROBES = ROOT / "probes"
PAGE = PROBES / "planted_bugs.md"
BEGIN, END = "<!-- written by scripts/mutation_score.py -->\n", "<!-- to here -->\n"
TIME_LIMIT = 2_400  # seconds: where likeness fails alone, the whole ladder is trained
ALL = {**MUTANTS, "ppo_rnn": PPO_RNN}
ISOLATED_BY = {**COMPONENTS, "ppo_rnn": COMPONENTS_RNN}
AGENT_SEEDS = (0, 1_000, 2_000)  # the first of 64
# What the outcome of rungs depends on: these files of the probes, and of check.py these definitions, with theirs.
OF_RUNGS = (
    "ladder", "memory", "ways", "environments", "solve", "lacking", "one_by_one", "registration", "oracles/base",
)  # fmt: skip
JUDGED_BY = ("groups_of", "refusal", "train_group", "given_time", "astray", "FEW", "FEW_FAIL")


def planted(agent: str, mutant: Mutant | None) -> str:
    """The agent's file with the bug in it. Raises ValueError unless the bug's text occurs exactly once."""
    source = (ROOT / "rlref" / f"{agent}.py").read_text()
    if mutant is None:
        return source
    return plant(f"{agent}, {mutant.name}", source, [(mutant.old, mutant.new)])


under_other_names = functools.cache(renamed)


def probe(agent: str, source: str, folder: Path, options: list[str]) -> dict[str, Any]:
    """What `rlref probe` says of a file: the first check that fails ('' if none), its kind, the verdict, seconds."""
    own = Path(tempfile.mkdtemp(dir=folder))
    path = own / f"{agent}.py"
    path.write_text(source)
    command = [sys.executable, "-m", "rlref.cli", "probe", str(path), "--fail-fast", "--no-bisect", "--json", *options]
    command += ["--time-limit", "0"]  # it has TIME_LIMIT
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder / "cache"))
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False, env=environment, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        said = f"not done after {TIME_LIMIT} s"
        return {"check": "time limit", "by": "time limit", "verdict": said, "seconds": TIME_LIMIT}
    seconds = time.perf_counter() - start
    if done.returncode == 2:  # it does not run, and says where
        said = done.stderr.strip().splitlines()[-1].replace(str(path), path.name)
        return {
            "check": "error",
            "by": "error",
            "verdict": said,
            "first_failure": round(seconds, 1),
            "seconds": round(seconds),
        }
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"rlref probe ended with {done.returncode}: {done.stderr[-2000:]}")
    report = json.loads(done.stdout)
    failed = [
        (check["name"], by) for by in ("oracle", "rung") for check in report[f"{by}s"] if check["status"] == "failed"
    ]
    check, by = failed[0] if failed else ("", "")
    says = report["says"].replace(str(path), path.name)
    # Until the first check had failed, with what Python and its imports take.
    first = report["seconds"]["first_failure"]
    sooner = seconds if first is None else round(seconds - report["seconds"]["all"] + first, 1)
    return {
        "check": check,
        "by": by,
        "word": report["verdict"],
        "verdict": says,
        "first_failure": sooner,
        "seconds": round(seconds),
    }


def localised(row: dict[str, Any]) -> bool:
    """Whether the first check that fails is one that isolates the component that the bug is in."""
    return row["check"] in ISOLATED_BY[row["agent"]][row["component"]].split()


def find(
    row: dict[str, Any], source: str, folder: Path, old: dict[str, Any], changed: list[str] | None
) -> dict[str, Any]:
    """A row of the catalogue with what is found; of an `old` one by what has `changed` since, unless that is None."""
    ways = row.pop("options")
    if changed is not None:
        of_row = ways[0] if row["part"] == "itself" else []
        if not changed or not probe(row["agent"], source, folder, [*of_row, *only(changed)])["check"]:
            return old | row
    for words in ways:
        found = probe(row["agent"], source, folder, words)
        if found["check"]:
            break
    return row | found


PARTS = ("full", "trained", "renamed")


def catalogue(part: str) -> dict[str, dict[str, Any]]:
    """Key -> a row without what is found, and the options to probe its file with, in turn until a check fails."""
    rows: dict[str, dict[str, Any]] = {}
    for agent, mutants in (ALL if part == "full" else MUTANTS).items():
        ladder = only([name for name, x in LADDER.items() if agent in x.kinds])
        options = {"full": [[]], "trained": [ladder], "renamed": [only(oracles_of(agent)), ladder]}[part]
        for mutant in mutants:
            about = {"part": part, "agent": agent, "mutant": mutant.name, "component": mutant.component,
                     "equivalent": mutant.equivalent, "later": mutant.declared_later}  # fmt: skip
            if part == "renamed":
                about["apart"] = mutant.apart
            if part != "renamed" or not mutant.equivalent:
                rows[f"{part}/{agent}/{mutant.name}"] = about | {"options": options}
        for first in AGENT_SEEDS if part == "full" else ():
            about = {"part": "itself", "agent": agent, "seeds": first}
            rows[f"itself/{agent}/{first}"] = about | {"options": [["--seed", str(first)]]}
    return rows


def source_of(row: dict[str, Any]) -> str:
    """The file that a row of the catalogue is about."""
    agent = row["agent"]
    source = planted(agent, next((x for x in ALL[agent] if x.name == row.get("mutant")), None))
    return under_other_names(source) if row["part"] == "renamed" else source


def behind(check: str) -> list[str]:
    """What an oracle does: itself and the functions, classes and constants that it refers to, without docstrings."""
    return reached_from((check,), (ROOT / "probes" / "environments.py", *sorted(PROBES.glob("oracles/*.py"))))


def reached_from(roots: tuple[str, ...], files: tuple[Path, ...]) -> list[str]:
    """These definitions of the files, and those that they refer to, without docstrings."""
    names, texts = defined_in(files)
    return [text for name in sorted(reached(names, {*roots}) & {*texts}) for text in texts[name]]


@functools.cache
def defined_in(files: tuple[Path, ...]) -> tuple[dict[str, set[str]], dict[str, list[str]]]:
    """Definition -> what it refers to, and its text without docstrings; of one name in two files both."""
    names, texts = defaultdict[str, set[str]](set), defaultdict[str, list[str]](list)
    for path in files:
        for name, node in nodes(path.read_text()).items():
            names[name] |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
            texts[name].append(without_docstrings(node))
    return dict(names), dict(texts)


@functools.cache
def of_rungs() -> tuple[list[str], dict[str, str]]:
    """What decides whether a rung passes, without docstrings: of all rungs, and each one's own function."""
    shared, own = reached_from(JUDGED_BY, (PROBES / "check.py",)), dict[str, str]()
    for name in OF_RUNGS:
        text = (PROBES / f"{name}.py").read_text()
        named = {name: without_docstrings(node) for name, node in nodes(text).items()}
        own |= {name: x for name, x in named.items() if name in LADDER | MEMORY}
        shared += [x for name, x in named.items() if name not in own]
        shared += [without_docstrings(node) for node in between(text)]
    return shared, own


@functools.cache
def asked_of(agent: str) -> dict[str, Any]:
    """The checks that an agent's file is asked, in order."""
    with_memory = agent == "ppo_rnn"
    checks = checks_for(agent.removesuffix("_rnn"), with_memory)
    return {name: x for name, x in checks.items() if with_memory or name not in MEMORY}


def oracles_of(agent: str) -> list[str]:
    """The oracles that an agent's file is asked."""
    return [name for name, x in asked_of(agent).items() if isinstance(x, Oracle)]


@functools.cache
def versions(agent: str) -> dict[str, str]:
    """The checks that an agent's file is asked -> what they depend on, hashed."""
    shared, own = of_rungs()
    return {
        name: hashed(*(behind(name) if isinstance(x, Oracle) else [*shared, own.get(name, "")]))[:8]
        for name, x in asked_of(agent).items()
    }


def kept_checks() -> dict[str, dict[str, str]]:
    return json.loads(CHECKS.read_text()) if CHECKS.exists() else {}


def asked_now(agent: str, source: str) -> dict[str, str]:
    """What a row keeps of the file and the checks that it was made with; CHECKS says which they were."""
    now, kept = versions(agent), kept_checks()
    key = hashed(json.dumps(now))
    if key not in kept:
        text = json.dumps(kept | {key: now}, indent=1) + "\n"
        files.write(CHECKS, lambda file: file.write(text.encode()))  # atomically: other threads read it
    return {"file": hashed(source), "asked": key}


def changed_since(row: dict[str, Any], agent: str, source: str, failed: set[str]) -> list[str] | None:
    """The checks that are to be asked again of a row's file; None if all are: the file, or what failed, is another."""
    before, now = kept_checks().get(row.get("asked", "")), versions(agent)
    if before is None or row["file"] != hashed(source):
        return None
    changed = [name for name in now if before.get(name) != now[name]]
    return None if failed & {*changed} or failed - {*now} else changed


def only(names: list[str]) -> list[str]:
    """The options with which these checks alone are asked."""
    return [word for name in names for word in ("--only", name)]


def of_the_probes(bisect: bool = False) -> list[str]:
    """The texts of all their files; undo.py is used where changes are undone alone."""
    return [path.read_text() for path in sorted(PROBES.rglob("*.py")) if bisect or path.name != "undo.py"]


def hashed(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def version(agent: str, source: str, check: str) -> str:
    """What a row depends on: the file that is probed, and the probes.

    If an oracle showed it wrong, of the probes that oracle and what it refers to: whatever else they ask, it is WRONG.
    So checks that were added since, and would fail sooner, may name another component.
    """
    oracle = (ORACLES | MEMORY_ORACLES).get(check)
    if oracle and oracle.holds != LIKENESS:
        return hashed(source, *behind(check))
    return hashed(source, *versions(agent).values())


def to_ask_again(row: dict[str, Any], source: str) -> list[str] | None:
    """What decides whether a row stands: the checks that have changed since; None if all are to be asked."""
    called = re.findall(r"^\w+ at (\w+)", row["verdict"])
    failed = {row["check"], *called} - {""}
    changed = changed_since(row, row["agent"], source, failed)
    if changed and row.get("word") == "WRONG":  # and stays so, whatever fails after the first
        order = [*asked_of(row["agent"])]
        return [name for name in changed if order.index(name) < order.index(row["check"])]
    return changed


def totals(rows: list[dict[str, Any]]) -> str:
    """How many of the load-bearing bugs among the rows are caught, and how many of these are localised."""
    counted = [row for row in rows if not row["equivalent"] and not row.get("apart")]
    caught = [row for row in counted if row["check"]]
    right = sum(map(localised, caught))
    return (
        f"caught {len(caught)} of {len(counted)} ({len(caught) / max(len(counted), 1):.0%}), the right component named "
        f"first in {right} of these ({right / max(len(caught), 1):.0%})"
    )


def under_others(rows: list[dict[str, Any]], agents: list[str]) -> str:
    """What is found in copies with other names; how many of the bugs that is about, and how many are set apart."""
    number = sum(not mutant.equivalent for agent in agents for mutant in MUTANTS[agent])
    apart = sum(bool(row["apart"]) for row in rows)
    said = f"; {apart} are set apart." if apart else "."
    if len(rows) == number:
        return f"Under other names: {totals(rows)}{said}"
    least = sum(bool(row["check"]) and not row["apart"] for row in rows) / number
    return (
        f"Under other names, in the {len(rows)} of {number} that are measured so far: {totals(rows)}{said} "
        f"Of all {number} that is {least:.0%} at least."
    )


def is_fresh(row: dict[str, Any]) -> bool:
    """Whether a row is of the file and of the probes as they are."""
    return bool(row["version"] == version(row["agent"], source_of(row), row["check"]))


def markdown(rows: list[dict[str, Any]], number_older: int) -> str:
    """The score, then a table with one line per bug. `number_older` of the rows are not fresh."""
    full, trained, other, itself = (
        [row for row in rows if row["part"] == part] for part in ("full", "trained", "renamed", "itself")
    )
    by_rungs, by_behaviour = ({(row["agent"], row["mutant"]): row for row in part} for part in (trained, other))
    lines = []
    for name, agents in (("All three", [*MUTANTS]), *((agent.upper(), [agent]) for agent in ALL)):
        of_full, of_trained, of_other = (
            [row for row in part if row["agent"] in agents] for part in (full, trained, other)
        )
        line = f"- {name}: {totals(of_full)}."
        if (all_ := sum(not one.equivalent for agent in agents for one in ALL[agent])) > len(of_full):
            line += f" The others of {all_} are not measured yet."
        if of_trained:
            line += f" By the trained rungs alone: {totals(of_trained)}."
        if of_other:  # not of PPO_RNN
            line += f" {under_others(of_other, agents)}"
        if own := [row for row in itself if row["agent"] in agents]:
            line += (
                f" Unchanged: {sum(not row['check'] for row in own)} of {len(own)} sets of 64 seeds pass every check."
            )
        lines.append(line)
    if words := [row["word"] for row in full if row.get("word") and not row["equivalent"]]:
        number = sum(not row["equivalent"] for row in full)
        lines.append(
            f"- Of the {len(words)} bugs, of {number}, that were probed since there are four verdicts, "
            f"{words.count('WRONG')} are called WRONG and {words.count('DIFFERS')} DIFFERS: that line would be "
            "right in another method."
        )
    differ = [row for row in full if row.get("word") == "DIFFERS" and not row["equivalent"]]
    lines += [
        f"  - {row['agent'].upper()}, {row['mutant']}: right in {(METHODS | METHODS_RNN).get(row['mutant'])}."
        for row in differ
    ]
    minutes = sum(row["seconds"] for row in full + itself) / os.cpu_count() / 60
    lines.append(f"- Oracles and ladder took {minutes:.0f} minutes of {os.cpu_count()} cores.")
    number = len(full + other + itself)
    lines.append(f"- When this was written, {number_older} of {number} rows were of earlier agents or probes.")
    first = {row["check"] for row in full + trained + other}
    if idle := [name for name in (*ORACLES, *LADDER) if name not in first]:
        lines += [f"- No planted bug fails these first: {', '.join(idle)}."]
    lines += [
        "",
        "| agent | planted bug | component | fails first | right | s | first trained rung | right | "
        "under other names | right | s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(full, key=lambda row: (bool(row["equivalent"]), row["later"])):
        name = row["mutant"] + (f" (not counted: {row['equivalent']})" if row["equivalent"] else "")
        name += " (so declared after the first run)" if row["later"] else ""
        cells = [row["agent"].upper(), name, row["component"]]
        for part in ({(row["agent"], row["mutant"]): row}, by_rungs, by_behaviour):
            found = part.get((row["agent"], row["mutant"]))
            if found is None:
                cells += ["", ""] if part is by_rungs else ["", "", ""]
                continue
            missed = f"nothing, set apart: {found['apart']}" if found.get("apart") else "nothing"
            differs = " (DIFFERS)" if found.get("word") == "DIFFERS" else ""
            cells += [
                (found["check"] or missed) + differs,
                ("yes" if localised(found) else "no") if found["check"] else "",
            ]
            if part is not by_rungs:
                cells.append(str(found["seconds"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def caught_by(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Agent -> bug -> the checks that have failed first; '' among them where the rungs alone were tried, in vain."""
    found: dict[str, dict[str, list[str]]] = {agent: {} for agent in ALL}
    for row in rows:
        if row["part"] != "itself" and not row["equivalent"]:
            checks = found[row["agent"]].setdefault(row["mutant"], [])
            if row["check"] not in checks and (row["check"] or row["part"] == "trained"):
                checks.append(row["check"])
    return found


def write(rows: dict[str, dict[str, Any]]) -> None:
    """The results, and the table in probes/planted_bugs.md."""
    known = {key: row for part in PARTS for key, row in catalogue(part).items()}
    kept = {
        key: rows[key] | {name: x for name, x in row.items() if name != "options"}
        for key, row in known.items()
        if key in rows
    }
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    CAUGHT_BY.write_text(json.dumps(caught_by(list(kept.values())), indent=1) + "\n")
    number_older = sum(row["part"] != "trained" and not is_fresh(row) for row in kept.values())
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + markdown(list(kept.values()), number_older) + END + rest.split(END)[1])


def at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="bugs whose name contains one of these words")
    parser.add_argument("--agent", choices=tuple(ALL), action="append", help="may be repeated")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--trained", action="store_true", help="train the ladder alone, without the oracles")
    parts.add_argument("--renamed", action="store_true", help="in copies whose names are all others")
    parser.add_argument("--sample", type=at_least_1, metavar="N", help="so many bugs, evenly from the agents")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=at_least_1, default=os.cpu_count(), help="files probed at a time")
    options = parser.parse_args()

    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    todo = {
        key: row
        for key, row in catalogue("trained" if options.trained else "renamed" if options.renamed else "full").items()
        if row["agent"] in (options.agent or ALL)
        and (not options.words or any(word in row.get("mutant", "") for word in options.words))
    }
    if not todo:
        parser.error(f"no bug's name contains {' or '.join(options.words)}")
    if options.sample is None:
        todo = {key: row for key, row in todo.items() if key not in rows or not is_fresh(rows[key])}
    else:
        todo = {key: row for key, row in todo.items() if not row.get("equivalent", "unchanged")}
    if options.sample is not None or options.renamed:  # by turns, so that what a stopped run has is a sample too
        bugs = [*todo]
        random.Random(options.seed).shuffle(bugs)
        by_agent = [[key for key in bugs if todo[key]["agent"] == agent] for agent in ALL]
        turns = [key for turn in itertools.zip_longest(*by_agent) for key in turn if key]
        todo = {key: todo[key] for key in turns[: options.sample]}

    if options.sample is None:  # what is said of old rows may have changed
        write(rows)
    done = []
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        # Files are made in this thread, and versions: in Python 3.11 two threads cannot parse at a time.
        sources = {key: source_of(row) for key, row in todo.items()}
        known = rows if options.sample is None else {}
        started = {}
        for key, row in todo.items():
            old = known.get(key, {})
            changed = to_ask_again(old, sources[key]) if old else None
            started[pool.submit(find, row, sources[key], Path(folder), old, changed)] = key
        for future in concurrent.futures.as_completed(started):
            key, row = started[future], future.result()
            row["version"] = version(row["agent"], sources[key], row["check"])
            row |= asked_now(row["agent"], sources[key])
            done.append(row)
            wrong = row["check"] and "mutant" in row and not localised(row)
            said = "passes" if not row["check"] else row["check"] + (", the wrong component" if wrong else "")
            print(f"{len(done)} of {len(todo)}, {row['seconds']} s, {key}: {said}", flush=True)
            if options.sample is None:
                rows[key] = row
                write(rows)
    bugs_done = [row for row in done if row["part"] != "itself"]
    print(totals(bugs_done))
    if times := [row["first_failure"] for row in bugs_done if row["check"] and "first_failure" in row]:
        median, most = np.median(times), np.percentile(times, 90)
        print(f"the first check had failed after {median:.1f} s in the median, {most:.1f} s in 90 % of {len(times)}")
    missed = [row for row in bugs_done if not row["equivalent"] and not row.get("apart") and not row["check"]]
    alarms = [row for row in done if row["part"] == "itself" and row["check"]]
    return 1 if missed or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
