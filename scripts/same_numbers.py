"""Do the agents still compute what they did at an older commit, bit for bit?

    python scripts/same_numbers.py 2c43d6c                 all cases, about 5 minutes
    python scripts/same_numbers.py 2c43d6c ppo cem         those of these agents
    python scripts/same_numbers.py 2c43d6c --one-update    one update from a given state, to 1e-5: see below

Trains every case below for 20 updates, 4 seeds each, in a work tree of that commit and in this one, and compares the
metrics that both have. Then this tree takes what the older one left behind: it loads the run's folder, plays its seeds
and an exported one, and goes on from the older checkpoint of two to the same end. Where an agent's file has changed and
a run cannot be taken by it, it must say why in one line. Exit code 1 if anything differs. Without an accelerator:
equality of bits holds on one machine, for one number of devices.

For changes that keep the numbers but not their last bits, --one-update trains each case with the older agent's file,
and hands its state to this tree's agent before every third update: what both make of it, parameters and diagnostics,
must be the same to 1e-5 of the parameters' or the metric's largest value over the seeds; to 1e-6 where that is below
.1, for such numbers are differences of terms of the order of 1.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 600  # seconds that one process may take
CASES = {  # two of small vectors each, whose settings switch on what the other has not, and images
    "ppo-discrete": "ppo --total-timesteps 10240 --target-kl 0.02",
    "ppo-box": "ppo --env-id Pendulum-v1 --total-timesteps 20480 --num-envs 8 --normalize-observations "
    "--scale-rewards --no-norm-adv --no-clip-vloss --no-anneal-lr --hidden-sizes 32 --activation relu",
    "ppo-images": "ppo --env-id Breakout-MinAtar --total-timesteps 10240 --hidden-sizes 32 --conv-layers 8 3 2",
    "dqn-double": "dqn --total-timesteps 20000 --learning-starts 1500 --anneal-lr --tau 0.5",
    "dqn-n-step": "dqn --env-id Acrobot-v1 --total-timesteps 20000 --learning-starts 1500 --n-step 3 --target max "
    "--loss huber --dueling --max-grad-norm 1 --target-network-frequency 2000",
    "dqn-images": "dqn --env-id Breakout-MinAtar --total-timesteps 8000 --cycles-per-update 40 --learning-starts 1000 "
    "--buffer-size 4000 --buffer-dtype bool --target expected_sarsa --hidden-sizes 32 --target-network-frequency 400",
    "cem-discrete": "cem --num-generations 20 --num-rollouts 2",
    "cem-box": "cem --env-id Pendulum-v1 --num-generations 20 --num-rollouts 2 --population-size 16 --hidden-sizes 4 "
    "--smoothing 0.3 --activation relu",
}
UPDATES, SEEDS = 20, 4
CLOSE = 1e-5
WORKER = """
import json, sys
from pathlib import Path
import numpy as np
import rlref
assert Path(rlref.__file__).is_relative_to(sys.argv[1]), rlref.__file__
for name, path in json.loads(sys.argv[2]).items():
    np.savez(Path(sys.argv[3]) / name, **rlref.load(path).metrics)
"""


def command(tree: Path, arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with the `rlref` of `tree`."""
    variables = os.environ | {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, env=variables, capture_output=True, text=True, timeout=LIMIT
    )


def rlref(tree: Path, arguments: str, cwd: Path, fails: bool = False) -> str:
    """What `rlref` of `tree` prints. Raises RuntimeError if it fails, or does not where it must."""
    done = command(tree, ["-c", "import sys; from rlref.cli import main; sys.exit(main())", *arguments.split()], cwd)
    # 1: it trained, and a verdict calls 20 updates unhealthy.
    if done.returncode not in ((2,) if fails else (0, 1)) or "Traceback" in done.stderr:
        raise RuntimeError(f"rlref {arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stderr.strip() if fails else done.stdout


def metrics_of(tree: Path, runs: dict[str, Path], cwd: Path) -> dict[str, dict[str, np.ndarray]]:
    """The metrics of run folders, as the `rlref` of `tree` loads them."""
    paths = json.dumps({name: str(path) for name, path in runs.items()})
    done = command(tree, ["-c", WORKER, str(tree), paths, str(cwd)], cwd)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {name: dict(np.load(cwd / f"{name}.npz")) for name in runs}


def differences(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> list[str]:
    """Metrics that both have and whose bits differ, with where they first do. NaN is NaN."""
    found = []
    for name in sorted((old.keys() & new.keys()) - {"steps_per_second"}):
        x, y = old[name], new[name]
        if x.shape != (SEEDS, UPDATES) or x.shape != y.shape:
            found.append(f"{name}: {x.shape} and {y.shape}")
        elif (differ := (x.view(np.uint32) != y.view(np.uint32)) & ~(np.isnan(x) & np.isnan(y))).any():
            row, update = np.argwhere(differ)[0]
            found.append(f"{name}: {x[row, update]!r} and {y[row, update]!r} in update {update} of seed {row}")
    return found


def without_newest(run: Path, copy: Path) -> Path:
    """A copy of a run's folder that was stopped at the older of its checkpoints."""
    shutil.copytree(run, copy)
    (copy / "summary.json").unlink()
    for group in (copy / "checkpoints").iterdir():
        steps = sorted((x for x in group.iterdir() if x.name.isdigit()), key=lambda x: int(x.name))
        shutil.rmtree(steps[-1])
    return copy


def check_case(name: str, old: Path, folder: Path) -> list[str]:
    """Train a case in both trees, hand over what the older left; returns what is wrong, and prints the rest."""
    agent = CASES[name].split()[0]
    words = f"train {CASES[name]} --defaults --num-seeds {SEEDS} --checkpoint-every 10 --run-dir"
    then, now = folder / f"{name}-then", folder / f"{name}-now"
    rlref(old, f"{words} {then}", folder)
    rlref(ROOT, f"{words} {now}", folder)
    loaded = metrics_of(ROOT, {"then": then, "now": now}, folder)
    wrong = differences(loaded["then"], loaded["now"])
    names = [set(loaded[x]) - {"steps_per_second"} for x in ("then", "now")]
    print(f"{name}: {len(names[0] & names[1])} metrics compared, {len(wrong)} differ")
    wrong += [f"{gone} is gone" for gone in sorted(names[0] - names[1])]
    if names[1] - names[0]:
        print(f"  new: {', '.join(sorted(names[1] - names[0]))}")
    if differences(metrics_of(old, {"then": then}, folder)["then"], loaded["then"]):
        wrong.append("the older run's metrics load otherwise")

    def played(tree: Path, what: str) -> Any:
        return json.loads(rlref(tree, f"play {what} --episodes 3 --json", folder))

    exported, source = folder / f"{name}.npz", old / "rlref" / f"{agent}.py"
    rlref(old, f"export {then} --seed 1 --out {exported}", folder)
    seeds = played(old, f"{then} --seed 1")
    if played(ROOT, f"{then} --seed 1") != seeds:
        wrong.append("a seed of the older run plays otherwise")
    if played(ROOT, f"{exported} --agent {source}") != seeds:
        wrong.append("the older exported seed plays otherwise with its own agent's file")
    load = (
        f"import numpy; from rlref import {agent}; agent, state = {agent}.load({str(exported)!r}); "
        "print(agent.policy(state, numpy.ones(agent.init.args[0].obs_space.shape, 'float32')))"
    )
    both = [command(tree, ["-c", load], folder) for tree in (old, ROOT)]
    if both[0].stdout != both[1].stdout or not both[1].stdout:
        wrong.append(f"{agent}.load gives otherwise: {both[0].stdout} and {both[1].stdout}{both[1].stderr[-500:]}")

    stopped = without_newest(then, folder / f"{name}-stopped")
    rlref(ROOT, f"train --resume {stopped}", folder)
    wrong += [f"resumed, {x}" for x in differences(loaded["then"], metrics_of(ROOT, {"x": stopped}, folder)["x"])]
    if source.read_bytes() != (ROOT / "rlref" / f"{agent}.py").read_bytes():
        said = rlref(ROOT, f"play {exported} --episodes 3", folder, fails=True)
        print(f"  its exported seed, without its agent's file: {said.replace(str(folder), '.')}")
        if len(said.splitlines()) != 1:
            wrong.append(f"more than a line: {said}")
    for line in wrong:
        print(f"  WRONG: {line}")
    return wrong


def handed_over(state: Any, agent: Any, module: Any) -> Any:
    """A state of an older agent as one of this tree's, whose replay memory may be laid out otherwise."""
    import jax

    ours = jax.eval_shape(jax.vmap(agent.init), jax.vmap(jax.random.key)(np.arange(SEEDS)))
    if hasattr(module, "pack") and dataclasses.is_dataclass(state.buffer):
        state = state.replace(buffer=jax.vmap(module.pack)(module.Buffer(**vars(state.buffer))))
    return jax.tree.unflatten(jax.tree.structure(ours), jax.tree.leaves(state))


def check_one_update(name: str, old: Path) -> list[str]:
    """Train a case with the agent's file of `old`, and compare every third update with this tree's; what is wrong."""
    import jax
    import tyro

    from rlref.contract import load_agent
    from rlref.envs.ids import make_env

    kind, *words = CASES[name].split()
    older, module = load_agent(old / "rlref" / f"{kind}.py"), load_agent(kind)
    config = tyro.cli(module.Config, args=words)
    env, params = make_env(config.env_id)
    then, now = (x.make(x.Config(**vars(config)), env, params) for x in (older, module))
    train, again = (jax.jit(jax.vmap(agent.update, (0, None))) for agent in (then, now))
    state = jax.jit(jax.vmap(then.init))(jax.vmap(jax.random.key)(np.arange(SEEDS)))
    largest: dict[str, float] = {}
    for update in range(UPDATES):
        given, (state, metrics) = state, train(state, update)
        if update % 3:
            continue
        other, found = again(handed_over(given, now, module), update)
        pairs: dict[str, Any] = {x: (metrics[x], found[x]) for x in metrics.keys() & found.keys()}
        learned = "params" if hasattr(state, "params") else "mean"
        pairs["parameters"] = tuple(
            np.concatenate([np.ravel(x) for x in jax.tree.leaves(getattr(s, learned))]) for s in (state, other)
        )
        for metric, pair in pairs.items():
            x, y = (np.asarray(z, np.float64) for z in pair)
            if not (np.isnan(x) == np.isnan(y)).all():
                return [f"{metric} is {x} and {y} in update {update}"]
            off = np.nanmax(np.abs(x - y), initial=0.0) / max(np.nanmax(np.abs(x), initial=0.0), 0.1)
            largest[metric] = max(largest.get(metric, 0.0), off)
    exact = sum(x == 0 for x in largest.values())
    worst = sorted(largest, key=lambda metric: -largest[metric])[:3]
    listed = ", ".join(f"{metric} {largest[metric]:.1e}" for metric in worst)
    print(f"{name}: {exact} of {len(largest)} are the same bits; furthest apart: {listed}", flush=True)
    return [f"{metric}: {x:.1e}" for metric, x in largest.items() if not x <= CLOSE]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("agents", nargs="*", help="agents, or names of cases; without, all")
    parser.add_argument("--one-update", action="store_true", help="one update from a given state, to 1e-5")
    options = parser.parse_args()
    chosen = [name for name in CASES if not options.agents or {name, name.split("-")[0]} & set(options.agents)]
    if not chosen:
        parser.error(f"there are the cases {', '.join(CASES)}")
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        git = ["git", "-C", str(ROOT), "worktree"]
        if subprocess.run([*git, "add", "--quiet", "--detach", str(folder / "tree"), options.commit]).returncode:
            return 2
        try:
            for name in chosen:
                if options.one_update:
                    wrong += check_one_update(name, folder / "tree")
                else:
                    wrong += check_case(name, folder / "tree", folder)
        finally:
            subprocess.run([*git, "remove", "--force", str(folder / "tree")], check=True)
    for line in wrong if options.one_update else ():
        print(f"WRONG: {line}")
    print(f"{len(chosen)} cases: {'all the same' if not wrong else f'{len(wrong)} things differ'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
