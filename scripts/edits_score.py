"""Is a deliberate, right change of method called what it is, and is a bug beside one still found?

    python scripts/edits_score.py                   probe all edits, edits declared, and bugs on top of them
    python scripts/edits_score.py --agent dqn       those of one agent
    python scripts/edits_score.py KL V-trace        those whose name, or whose edit's name, contains one of these words
    python scripts/edits_score.py --train           train the edits instead, beside the unedited agents

Plants each edit of scripts/edits.py in a copy of the agent's file and asks `rlref probe COPY --json --no-bisect`. An
edit is right, so that nothing but likeness may fail: it must not be called WRONG. Then the likeness checks that failed
are declared in the copy, as PROBE_MEANT, and it is asked these once more: now it must be RIGHT. A bug on top of an
edit, asked with --fail-fast, must not be called RIGHT; its hunk is right if the undo that is offered lies in its
lines, and it is localised if the first check that fails isolates the component that the bug is in.

With --train each edit trains 8 seeds of CartPole-v1 through `rlref train COPY`, at the file's own settings but for
STEPS. It counts as training if the IQM of the final score is at least 400 of 500.

Writes scripts/results/edits.json and the tables in probes/right_edits.md. Stopped, it goes on where it was: a row is
made again only if the copy has changed since, or the probes have. Only those checks are asked again that have changed:
where none of them failed, or fails now, the row stands, of a bug as long as what undoes changes is the same.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import page
from edits import BUGS, BY_NAME, EDITS, bug_lines, edited, with_bug
from mutants import COMPONENTS
from mutation_score import PROBES, asked_now, changed_since, hashed, of_the_probes, only, versions

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "scripts" / "results" / "edits.json"
PAGE = ROOT / "probes" / "right_edits.md"
AGENTS = ("ppo", "dqn", "cem", "ppo_rnn")
TIME_LIMIT = 2400  # seconds: where likeness fails alone, the whole ladder is trained
NUM_SEEDS = 8  # of a training
STEPS = {"dqn": 300_000}  # of a training; the others' defaults
TRAINS = 400.0  # least IQM, of 500
VERDICTS = ("WRONG", "DIFFERS", "RIGHT", "NOT ENOUGH")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rlref.cli", *arguments]


def surroundings(folder: Path) -> dict[str, str]:
    """The environment variables of a command; compiled programs are kept where they say, or in `folder`."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder / "cache"))
    return os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}


def copy_of(agent: str, source: str, folder: Path) -> Path:
    """A file of the agent's name in a folder of its own."""
    path = Path(tempfile.mkdtemp(dir=folder)) / f"{agent}.py"
    path.write_text(source)
    return path


def declared(source: str, names: list[str], reason: str) -> str:
    """The source with these checks declared as meant to fail."""
    return f"{source}\n\nPROBE_MEANT = {dict.fromkeys(names, reason)!r}\n"


def probe(agent: str, source: str, folder: Path, *options: str) -> dict[str, Any]:
    """What `rlref probe` says of a file, with these options.

    The verdict ("error" if it does not run or takes too long), the sentence, the exit code, what failed as pairs of
    name and what it holds, in order, the names of the definitions that it calls changed, the lines to undo, with those
    of functions that are not used then, seconds.
    """
    path, start = copy_of(agent, source, folder), time.perf_counter()
    empty: dict[str, Any] = {"verdict": "error", "failed": [], "changed": [], "undo": None}
    try:
        done = subprocess.run(
            command("probe", str(path), "--json", "--time-limit", "0", *options),
            capture_output=True, text=True, timeout=TIME_LIMIT, check=False, env=surroundings(folder), cwd=ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return empty | {"says": f"not done after {TIME_LIMIT} s", "code": None, "seconds": TIME_LIMIT}
    seconds = round(time.perf_counter() - start)
    if done.returncode == 2:  # it does not run, and says where
        said = done.stderr.strip().splitlines()[-1].replace(str(path), path.name)
        return empty | {"says": said, "code": 2, "seconds": seconds}
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"rlref probe ended with {done.returncode}: {done.stderr[-2000:]}")
    report = json.loads(done.stdout)
    failed = [[x["name"], x["holds"]] for x in report["oracles"] + report["rungs"] if x["status"] == "failed"]
    return {
        "verdict": report["verdict"],
        "says": report["says"].replace(str(path), path.name),
        "code": done.returncode,
        "failed": failed,
        "changed": [x["name"] for x in report["changed"]],
        "undo": report["undo"] and [x["lines"] for x in report["undo"] + report["no_more_used"]],
        "seconds": seconds,
    }


def train(agent: str, source: str, folder: Path) -> dict[str, Any]:
    """How a file's agent ends on CartPole-v1. Raises RuntimeError if it does not train at all."""
    path = copy_of(agent, source, folder)
    steps = ["--total-timesteps", str(STEPS[agent])] if agent in STEPS else []
    run = path.parent / "run"
    arguments = ["train", str(path), "--num-seeds", str(NUM_SEEDS), "--run-dir", str(run), *steps]
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=surroundings(folder), cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"rlref train ended with {done.returncode}: {done.stderr[-2000:]}")
    return trained(run)


def trained(run: Path) -> dict[str, Any]:
    """What is kept of a run's folder."""
    summary = json.loads((run / "summary.json").read_text())
    warnings = [x["check"] for x in summary["findings"] if x["severity"] != "INFO"]
    return {"iqm": summary["iqm"], "min": summary["min"], "max": summary["max"], "findings": warnings}


def named(row: dict[str, Any]) -> bool:
    """Whether what is said of an edit, or what is called changed, names one of the definitions that it changes."""
    words = {*re.findall(r"\w+", row["says"]), *row["changed"]}
    return bool(words & {*row["changes"]})


def right_hunk(row: dict[str, Any]) -> bool:
    """Whether the undo that is offered lies in the lines of the bug, or holds them."""
    start, end = row["lines"]
    return any(first <= end and start <= last for first, last in row["undo"] or ())


def localised(row: dict[str, Any]) -> bool:
    """Whether the first check that fails is one that isolates the component that the bug is in."""
    return bool(row["failed"]) and row["failed"][0][0] in COMPONENTS[row["agent"]][row["component"]].split()


def catalogue(part: str) -> dict[str, dict[str, Any]]:
    """Key -> a row without what is found, and the source: of "train", or of "probe" (edits and bugs)."""
    rows: dict[str, dict[str, Any]] = {}
    if part == "train":
        for agent in AGENTS:
            source = (ROOT / "rlref" / f"{agent}.py").read_text()
            rows[f"train/{agent}, unedited"] = {"part": "train", "agent": agent, "edit": "", "source": source}
    for edit in EDITS:
        about: dict[str, Any] = {"part": part, "agent": edit.agent, "edit": edit.name, "source": edited(edit)}
        if part == "probe":
            about |= {"part": "edit", "changes": list(edit.changes)}
        rows[f"{about['part']}/{edit.name}"] = about
    for bug in BUGS if part == "probe" else ():
        agent = BY_NAME[bug.edit].agent
        about = {"part": "bug", "agent": agent, "edit": bug.edit, "bug": bug.name, "component": bug.component}
        about |= {"definition": bug.definition, "lines": list(bug_lines(bug)), "inside": inside(bug.edit, bug.old)}
        rows[f"bug/{bug.name}"] = about | {"source": with_bug(bug)}
    return rows


def inside(name: str, text: str) -> bool:
    """Whether the text that a bug replaces is text of the edit that it sits on."""
    return any(text.strip() in new for _, new in BY_NAME[name].replace)


def version(row: dict[str, Any]) -> str:
    """What a row depends on: the file, and of a row that is probed the probes."""
    texts = [] if row["part"] == "train" else of_the_probes(bisect=row["part"] == "bug")  # edits are asked without
    return hashed(row["source"], str(STEPS.get(row["agent"])), *texts)


def find(row: dict[str, Any], folder: Path, old: dict[str, Any]) -> dict[str, Any]:
    """The row with what is found, and without the source; `old` is what was found before."""
    source, agent = row["source"], row["agent"]
    kept = {name: x for name, x in row.items() if name != "source"} | {"version": version(row)}
    if row["part"] == "train":
        return kept | train(agent, source, folder)
    if row["part"] == "bug":
        kept["undone_by"] = hashed(*((PROBES / f"{name}.py").read_text() for name in ("changes", "undo", "verdict")))
    changed = changed_since(old, agent, source, {name for name, _ in old["failed"]}) if old else None
    if changed is not None and old.get("undone_by") == kept.get("undone_by"):
        again = probe(agent, source, folder, "--no-bisect", *only(changed)) if changed else old
        if again["verdict"] != "error" and (again is old or not again["failed"]):
            return old | kept
    if row["part"] == "bug":
        return kept | probe(agent, source, folder, "--fail-fast")
    found = probe(agent, source, folder, "--no-bisect")
    likeness = [name for name, holds in found["failed"] if holds == "likeness"]
    found["declared"] = None
    if likeness:
        meant = declared(source, likeness, BY_NAME[row["edit"]].method)
        found["declared"] = probe(agent, meant, folder, *only(likeness))
    return kept | found


def ok(row: dict[str, Any]) -> bool:
    """Whether a row is as it should be."""
    if row["part"] == "train":
        return row["iqm"] >= TRAINS
    if row["part"] == "bug":
        return row["verdict"] not in ("RIGHT", "error")
    again = row["declared"] or row
    return row["verdict"] not in ("WRONG", "error") and again["verdict"] == "RIGHT"


def counts(rows: list[dict[str, Any]]) -> str:
    """How many rows have each verdict."""
    number = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in (*VERDICTS, "error")}
    return ", ".join(f"{count} {verdict}" for verdict, count in number.items() if count)


def of_training(rows: list[dict[str, Any]]) -> str:
    """A table with one line per edit, and the unedited agents first."""
    edits = [row for row in rows if row["edit"]]
    unedited = {row["agent"]: row["iqm"] for row in rows if not row["edit"]}
    lines = [
        f"{sum(map(ok, edits))} of {len(edits)} edits train: their IQM over {NUM_SEEDS} seeds is at least {TRAINS:g}.",
        "",
        "| agent | edit | method | IQM | lowest | unedited |",
        "|---|---|---|---|---|---|",
    ]
    for row in edits:
        known = unedited.get(row["agent"])
        cells = [row["agent"].upper(), row["edit"], BY_NAME[row["edit"]].method, f"{row['iqm']:.0f}",
                 f"{row['min']:.0f}", "" if known is None else f"{known:.0f}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def of_edits(rows: list[dict[str, Any]]) -> str:
    """What is said of each edit, and of each once its likeness checks are declared."""
    differ = [row for row in rows if row["verdict"] == "DIFFERS"]
    again = [row["declared"] for row in rows if row["declared"]]
    lines = [
        f"- {len(rows)} right edits are called: {counts(rows)}.",
        f"- Of {len(differ)} that differ, what is said names a definition that was changed in "
        f"{sum(map(named, differ))}.",
        f"- Declared, {len(again)} are called: {counts(again)}.",
        "",
        "| agent | edit | verdict | likeness that fails | anything else that fails | named | declared | exit | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        likeness = [name for name, holds in row["failed"] if holds == "likeness"]
        others = [f"{name} ({holds})" for name, holds in row["failed"] if holds != "likeness"]
        found = row["declared"] or {"verdict": "", "code": ""}
        cells = [row["agent"].upper(), row["edit"], row["verdict"], ", ".join(likeness), ", ".join(others),
                 "yes" if named(row) else "no", found["verdict"], str(found["code"]), str(row["seconds"])]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def of_bugs(rows: list[dict[str, Any]]) -> str:
    """What is said of each bug on top of an edit."""
    lines = []
    parts = {"in the edited lines": [row for row in rows if row["inside"]],
             "elsewhere": [row for row in rows if not row["inside"]]}  # fmt: skip
    for where, some in parts.items():
        lines.append(
            f"- {len(some)} bugs {where} are called: {counts(some)}. The undo offered lies in the bug's lines in "
            f"{sum(map(right_hunk, some))}; the first check that fails is of the bug's component in "
            f"{sum(map(localised, some))}."
        )
    lines += [
        "",
        "| agent | edit | bug | in the edit | verdict | fails first | right component | right hunk | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        first = row["failed"][0][0] if row["failed"] else "nothing"
        answers = ["yes" if x else "no" for x in (localised(row), right_hunk(row))]
        cells = [row["agent"].upper(), row["edit"], row["bug"], "yes" if row["inside"] else "no", row["verdict"], first,
                 *answers, str(row["seconds"])]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(rows: dict[str, dict[str, Any]]) -> None:
    """The results, in the catalogue's order, and the tables in probes/right_edits.md."""
    known = {key: version(row) for part in ("train", "probe") for key, row in catalogue(part).items()}
    kept = {key: rows[key] for key in known if key in rows}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    for part, table in (("train", of_training), ("edit", of_edits), ("bug", of_bugs)):
        if some := {key: row for key, row in kept.items() if row["part"] == part}:
            number = sum(row["version"] != known[key] for key, row in some.items())
            older = f"When this was written, {number} of {len(some)} rows were of earlier agents or probes.\n\n"
            page.put(PAGE, part, older + table([*some.values()]))


def at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="edits, and bugs, whose name contains one of these words")
    parser.add_argument("--agent", choices=AGENTS, action="append", help="may be repeated")
    parser.add_argument("--train", action="store_true", help="train the edits, and probe nothing")
    parser.add_argument("--jobs", type=at_least_1, default=os.cpu_count(), help="files at a time")
    options = parser.parse_args()

    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    wanted = {
        key: row
        for key, row in catalogue("train" if options.train else "probe").items()
        if row["agent"] in (options.agent or AGENTS)
        and (not options.words or any(word in f"{row['edit']}, {row.get('bug', '')}" for word in options.words))
    }
    if not wanted:
        parser.error(f"no edit's or bug's name contains {' or '.join(options.words)}")
    todo = {key: row for key, row in wanted.items() if rows.get(key, {}).get("version") != version(row)}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for agent in AGENTS:  # in this thread: in Python 3.11 two cannot parse at a time
            versions(agent)
        futures = {pool.submit(find, row, Path(folder), rows.get(key, {})): key for key, row in todo.items()}
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            key = futures[future]
            rows[key] = row = future.result()
            if row["part"] != "train":
                row |= asked_now(row["agent"], todo[key]["source"])
            said = f"IQM {row['iqm']:.0f}" if row["part"] == "train" else row["verdict"]
            print(f"{number} of {len(todo)}, {key}: {said}{'' if ok(row) else ', and should not be'}", flush=True)
            write(rows)
    done = [rows[key] for key in wanted]
    wrong = [row for row in done if not ok(row)]
    print(f"{len(done) - len(wrong)} of {len(done)} are as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
