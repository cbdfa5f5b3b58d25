"""What runs survive: kill -9 at random moments, damaged folders, a full disk; and what checkpoints cost.

    python scripts/survival.py kills           20 kills per agent, half of them in the middle of a save: about 20 min
    python scripts/survival.py corruption      flipped bits, missing and truncated files, a full disk: about 6 min
    python scripts/survival.py cost            what a checkpoint adds to 64 seeds of DQN: about 10 min, alone

Each writes scripts/results/survival.json and the tables between the markers in rlref/runs/survival.md.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import page

import rlref
from rlref import dqn, ppo
from rlref.envs.ids import make_env
from rlref.errors import UsageError
from rlref.runs import checkpoint
from rlref.runs.display import Silent
from rlref.runs.group import Group
from rlref.runs.job import Job
from rlref.runs.leaves import named_leaves
from rlref.runs.plan import job_bytes, make_plan
from rlref.runs.programs import compile_programs
from rlref.runs.stopping import Stop

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "survival.json"
PAGE = HERE.parent / "rlref" / "runs" / "survival.md"
LIMIT = 300  # seconds that one process may take
# About three seconds of training after compiling, with a checkpoint every few updates, so that kills meet many of them.
SMALL = {
    "ppo": "--num-seeds 4 --total-timesteps 100000 --hidden-sizes 32 --eval-every 20 --checkpoint-every 15",
    "dqn": "--num-seeds 4 --total-timesteps 60000 --hidden-sizes 32 --learning-starts 2000 --eval-every 20 "
    "--checkpoint-every 15",
    "cem": "--num-seeds 4 --env-id Pendulum-v1 --num-generations 200 --num-rollouts 1 --population-size 32 "
    "--eval-every 20 --checkpoint-every 15",
    "ppo_rnn": "--num-seeds 4 --total-timesteps 100000 --hidden-sizes 16 --memory-size 16 --eval-every 20 "
    "--checkpoint-every 15",
}


def rlref_process(arguments: list[str], cache: Path) -> subprocess.Popen[str]:
    """`rlref` with these arguments, as a process of its own that shares compiled programs with the others."""
    variables = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-P", "-m", "rlref.cli", *arguments]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=os.environ | variables, **pipes)


def finish(arguments: list[str], cache: Path) -> tuple[int, str]:
    """Exit code and output of `rlref` with these arguments."""
    with rlref_process(arguments, cache) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, output


def final_state(run: Path) -> dict[str, np.ndarray]:
    """All leaves of a finished run's last checkpoint."""
    with contextlib.closing(checkpoint.Checkpoints(run, 0)) as checkpoints:
        return checkpoints.load(checkpoints.record(checkpoints.updates()[0]))


def differences(run: Path, reference: Path) -> list[str]:
    """The leaves of the final state and the metrics that are not the same bits; steps per second apart."""
    pairs = [(final_state(run), final_state(reference)), (rlref.load(run).metrics, rlref.load(reference).metrics)]
    found = []
    for a, b in pairs:
        found += sorted(a.keys() ^ b.keys())
        same = {name for name in a.keys() & b.keys() if a[name].tobytes() == b[name].tobytes()}
        found += sorted((a.keys() & b.keys()) - same - {"steps_per_second"})
    return found


def saving(run: Path) -> bool:
    """Whether a checkpoint is half written."""
    folders = run.glob("checkpoints/row*/*")
    with contextlib.suppress(OSError):
        return any(f.is_dir() and not (f / "commit_success.txt").exists() for f in folders)
    return False


def wait_for_metrics(run: Path, process: subprocess.Popen[str]) -> None:
    """Until the first metrics of a run are on disk."""
    deadline = time.monotonic() + LIMIT
    while not (run / "metrics").is_dir() or not any((run / "metrics").iterdir()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"it did not train: {process.stdout.read() if process.stdout else ''}")
        time.sleep(0.002)


def kill_once(agent: str, run: Path, cache: Path, seconds: float, in_save: bool) -> dict[str, Any]:
    """Train, kill -9 a random time after the first metrics, and resume. What happened."""
    with rlref_process(["train", agent, *SMALL[agent].split(), "--run-dir", str(run)], cache) as process:
        wait_for_metrics(run, process)
        time.sleep(seconds)
        while in_save and process.poll() is None and not saving(run):
            time.sleep(0.0005)
        ended_before = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
    half_written = saving(run)
    kept = sorted(int(f.name) for f in run.glob("checkpoints/row000000/*") if (f / "commit_success.txt").exists())
    code, output = finish(["train", "--resume", str(run)], cache)
    too_late = ended_before or "is finished: it has all" in output
    if too_late or code != 0:
        return {"too late": too_late, "exit code": code, "output": output[-500:]}
    return {"seconds": round(seconds, 2), "in a save": half_written, "from update": kept[-1] if kept else 0}


def kills(agents: list[str], count: int, seed: int) -> dict[str, Any]:
    """Kill and resume `count` times; every time the outcome is compared with an uninterrupted run, bit for bit."""
    results = {}
    for agent in agents:
        rng = random.Random(seed)
        rows: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            whole, cache = Path(folder, "whole"), Path(folder, "cache")
            code, output = finish(["train", agent, *SMALL[agent].split(), "--run-dir", str(whole)], cache)
            if code != 0:
                raise RuntimeError(output)
            train_seconds = json.loads((whole / "summary.json").read_text())["train_seconds"]
            while len(rows) < count:
                run = Path(folder, f"killed-{len(rows)}")
                row = kill_once(agent, run, cache, rng.uniform(0, 0.9 * train_seconds), len(rows) % 2 == 1)
                if not row.get("too late"):
                    row["differs"] = [row["output"]] if "output" in row else differences(run, whole)
                    rows.append(row)
                    print(agent, len(rows), row, flush=True)
                shutil.rmtree(run)
            updates = rlref.load(whole).metrics["env_steps"].shape[-1]
        results[agent] = {"updates": updates, "train_seconds": train_seconds, "kills": rows}
    return results


CASES: dict[str, tuple[int, str]] = {
    # name: how often, and the files it is done to one of, drawn at random
    "a bit of the newest checkpoint flipped": (40, "checkpoints/row000000/NEWEST/**/*"),
    "a file of it cut off": (15, "checkpoints/row000000/NEWEST/**/*"),
    "a file of it missing": (15, "checkpoints/row000000/NEWEST/**/*"),
    "a bit of both checkpoints flipped": (8, "checkpoints/row000000/*/state/**/*"),
    "all checkpoints missing": (1, ""),
    "an empty folder with a number for a name": (1, ""),
    "a bit of the metrics flipped": (15, "metrics/*.npz"),
    "a file of metrics cut off": (5, "metrics/*.npz"),
    "a file of metrics missing": (5, "metrics/*.npz"),
    "a bit of config.json flipped": (15, "config.json"),
    "config.json missing": (1, "config.json"),
    "a bit of environment.json flipped": (5, "environment.json"),
    "a bit of the agent's file flipped": (5, "source/ppo.py"),
}


def damage(case: str, run: Path, rng: random.Random) -> None:
    """Do to the folder what `case` says."""
    rows = run / "checkpoints" / "row000000"
    newest = max(int(f.name) for f in rows.iterdir())
    pattern = CASES[case][1].replace("NEWEST", str(newest))
    files = sorted(f for f in run.glob(pattern) if f.is_file() and f.stat().st_size) if pattern else []
    if case == "all checkpoints missing":
        shutil.rmtree(rows)
    elif case == "an empty folder with a number for a name":
        (rows / str(newest + 1)).mkdir()
    elif case == "a bit of both checkpoints flipped":
        for folder in rows.iterdir():
            flip(max((f for f in files if folder in f.parents), key=lambda f: f.stat().st_size), rng)
    elif "flipped" in case:
        flip(rng.choice(files), rng)
    elif "cut off" in case:
        file = rng.choice(files)
        file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
    else:
        rng.choice(files).unlink()


def flip(file: Path, rng: random.Random) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def outcome(run: Path, whole: Path) -> str:
    """Resume a damaged run. What came of it, compared with an uninterrupted run."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            rlref.load(run)
            readable = ""
        except UsageError:
            readable = ", and could not be read before"
        try:
            rlref.resume(run)
        except UsageError as error:
            return f"refused in a line{readable}" if "\n" not in str(error) else "REFUSED IN SEVERAL LINES"
        except Exception as error:
            return f"CRASHED: {type(error).__name__}"
    if differences(run, whole):
        return "SILENTLY WRONG" if not warned else "WRONG, with a warning"
    texts = " ".join(str(w.message) for w in warned)
    how = ", began again" if "begins again" in texts else ", from an older checkpoint" if "is not used" in texts else ""
    return f"the same bits{how}{', with a warning' if warned else ', the damage was in nothing that is read'}{readable}"


def corruption(seed: int) -> dict[str, Any]:
    """Damage the folder of a run that was killed, in every way of CASES, and resume it."""
    rng = random.Random(seed)
    results: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder, "cache")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        config = ppo.Config(total_timesteps=20 * 32, num_steps=8, hidden_sizes=(8,), num_minibatches=1)
        rlref.train("ppo", config, num_seeds=4, run_dir=whole, checkpoint_every=8)
        shutil.copytree(whole, killed)
        (killed / "summary.json").unlink()  # as if killed at the very end; its checkpoints are of updates 16 and 20
        for case, (count, _) in CASES.items():
            results[case] = {}
            for _ in range(count):
                run = Path(folder, "run")
                shutil.copytree(killed, run)
                damage(case, run, rng)
                came = outcome(run, whole)
                results[case][came] = results[case].get(came, 0) + 1
                shutil.rmtree(run)
            print(case, results[case], flush=True)
        for kilobytes in (0, 4, 24):
            case = f"the disk full from a moment of training on: no file gets larger than {kilobytes} KB"
            results[case] = {}
            for _ in range(3):
                came = full_disk(Path(folder), kilobytes, rng.uniform(0, 1))
                results[case][came] = results[case].get(came, 0) + 1
            print(case, results[case], flush=True)
    return results


def full_disk(folder: Path, kilobytes: int, seconds: float) -> str:
    """Train; from `seconds` after the first metrics on nothing larger can be written; resume where it can."""
    run, whole, cache = folder / "full", folder / "full-whole", folder / "cache"
    arguments = ["train", "ppo", *SMALL["ppo"].split(), "--run-dir"]
    shutil.rmtree(run, ignore_errors=True)
    if not whole.exists():
        finish([*arguments, str(whole)], cache)
    with rlref_process([*arguments, str(run)], cache) as process:
        wait_for_metrics(run, process)
        time.sleep(seconds)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (kilobytes * 1024, kilobytes * 1024))
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return "HUNG"
    if "Traceback" in output:
        return "CRASHED"
    said = "warned of" if "could not be written" in output else "nothing said"
    resumed, output = finish(["train", "--resume", str(run)], cache)
    if resumed != 0:
        return f"{said}, exit {process.returncode}; NOT RESUMED: {output[-500:]}"
    same = "NOT THE SAME" if differences(run, whole) else "the same bits"
    return f"{said}, exit {process.returncode}; resumed once there was room: {same}"


def cost(turns: int, buffer_dtype: Literal["bool", "same"]) -> dict[str, Any]:
    """What a checkpoint adds to 64 DQN seeds' training: windows of 20 s that begin with one against windows without.

    In turn, in one process; the median of the differences. Time is by the clock: with the wait for the state to be
    read, and until it is written.
    """
    config = dqn.Config(
        env_id="Breakout-MinAtar",
        total_timesteps=10_000_000,
        num_envs=8,
        train_frequency=8,
        cycles_per_update=25,
        buffer_size=10_000,
        buffer_dtype=buffer_dtype,
        batch_size=64,
        learning_starts=1000,
        target_network_frequency=1000,
        hidden_sizes=(128,),
    )
    env, env_params = make_env(config.env_id)
    job = Job(dqn, config, env, env_params, list(range(64)), 0, 1, False)
    plan = make_plan(job.num_rows, job_bytes(job, True), None, Silent())
    group = Group(compile_programs(job, plan, Silent()), plan, job, 0)
    group.state = group.programs.init(group.config, group.seeds)
    done = 0

    def train(updates: int) -> float:
        nonlocal done
        start = time.monotonic()
        for _ in group.train(done, done + updates, 0, Stop()):
            pass
        done += updates
        return time.monotonic() - start

    train(50)  # until the buffers are full: 50 x 200 steps
    updates = max(1, round(20 / (train(6) / 6)))
    plain, with_one, whole = [], [], []
    blocked: list[float] = []

    def with_save(update: int) -> float:
        start = time.monotonic()
        checkpoints.save(job.about, group.real, update, group.state)
        blocked.append(time.monotonic() - start)
        train(updates)
        checkpoints.wait()
        return time.monotonic() - start

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(checkpoint.Checkpoints(Path(folder), 0)) as checkpoints,
    ):
        for turn in range(turns):
            # Either first, by turns: the machine's speed drifts by more than a checkpoint costs.
            for saves in (turn % 2 == 0, turn % 2 == 1):
                if saves:
                    with_one.append(with_save(turn))
                else:
                    plain.append(train(updates))
        for turn in range(turns, turns + 2):  # by itself, nothing else running
            start = time.monotonic()
            checkpoints.save(job.about, group.real, turn, group.state)
            checkpoints.wait()
            whole.append(time.monotonic() - start)
        newest = Path(folder, "checkpoints", "row000000", str(turns + 1))
        size = sum(f.stat().st_size for f in newest.rglob("*") if f.is_file())
        start = time.monotonic()
        checkpoints.load(checkpoints.record(turns + 1))
        load = time.monotonic() - start
    leaves = [checkpoint.raw(x) for x in named_leaves(group.state).values()]
    return {
        "state_mb": round(sum(x.size * x.dtype.itemsize for x in leaves) / 1e6, 1),
        "disk_mb": round(size / 1e6, 1),
        "windows_without_s": [round(x, 2) for x in plain],
        "windows_with_s": [round(x, 2) for x in with_one],
        "added_s": round(float(np.median(np.subtract(with_one, plain))), 2),
        "cost_percent": round(100 * float(np.median(np.subtract(with_one, plain))) / 60, 1),
        "blocked_s": round(float(np.median(blocked)), 3),
        "alone_s": round(float(np.median(whole)), 2),
        "load_s": round(load, 2),
        "steps_per_second": round(200 * 64 * updates / float(np.mean(plain))),
    }


def tables(results: dict[str, Any]) -> str:
    """The tables of rlref/runs/survival.md."""
    lines = ["| agent | kills | in the middle of a save | resumed with the same bits |", "|---|---|---|---|"]
    for agent in (agent for agent in SMALL if agent in results.get("kills", {})):
        x = results["kills"][agent]
        same, in_save = (
            sum(map(f, x["kills"])) for f in (lambda k: not k["differs"], lambda k: k.get("in a save", False))
        )
        lines.append(f"| {agent.upper()}, {x['updates']} updates | {len(x['kills'])} | {in_save} | {same} |")
    lines += ["", "| damage, to one file drawn at random | times | what came of it |", "|---|---|---|"]
    for case, outcomes in results.get("corruption", {}).items():
        listed = "; ".join(f"{count} x {text}" for text, count in sorted(outcomes.items()))
        lines.append(f"| {case} | {sum(outcomes.values())} | {listed} |")
    lines += [
        "",
        "| 64 seeds of DQN on Breakout-MinAtar, buffers of 10,000 | as bits | as they come |",
        "|---|---|---|",
    ]
    costs = results.get("cost", {})
    rows = {
        "state, MB": "state_mb",
        "on disk, MB": "disk_mb",
        "throughput without, steps/s": "steps_per_second",
        "a checkpoint adds to the training, s": "added_s",
        "which, once a minute, is": "cost_percent",
        "of it the training stands still, s": "blocked_s",
        "a save alone, s": "alone_s",
        "loading and checking it, s": "load_s",
    }
    for text, name in rows.items():
        unit = " %" if name == "cost_percent" else ""
        lines.append(f"| {text} | " + " | ".join(f"{x[name]:,}{unit}" for x in costs.values()) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "corruption", "cost"])
    parser.add_argument("--agent", action="append", choices=list(SMALL), help="kills: this agent alone")
    parser.add_argument("--count", type=int, default=20, help="kills: how many per agent")
    parser.add_argument("--turns", type=int, default=5, help="cost: windows with and without a checkpoint, as bits")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments and bits")
    options = parser.parse_args()
    if options.what == "kills":
        found = kills(options.agent or list(SMALL), options.count, options.seed)
    elif options.what == "corruption":
        found = corruption(options.seed)
    else:
        found = {"bool": cost(options.turns, "bool"), "same": cost(2, "same")}
    # Read only now: another part may have been running beside this one.
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[options.what] = (results.get("kills", {}) if options.what == "kills" else {}) | found
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    page.put(PAGE, "survival", tables(results))


if __name__ == "__main__":
    main()
