"""Scores over many seeds: `python scripts/scores.py [NAME ...]`; against those committed: `... --check [NAME ...]`.

A name is an agent ("dqn"), an environment ("Acrobot-v1"), a suite ("classic", "minatar", "bsuite", "brax", ...) or one
benchmark ("dqn/Acrobot-v1"); without one, all whose suite is installed. Settings are those of rlref/tuned.py, so a row
is what the `rlref train` beside it in the table gives, with as many --total-timesteps as stand behind an "@". A
seed's score is its `return_mean` at the last update: the mean return of its last 100 training episodes, as the policy
explores, unscaled reward; of CEM it is `mean_policy_return`, that of the Gaussian's mean on fresh keys.

Every benchmark is a run's folder under --run-dir. Stopped or killed, the same command goes on where it was, and what is
finished is only read; several processes may work at different benchmarks. All of it takes many hours on two cores.
Writes scores.json, the tables in scores.md and the pictures scores.png and scores_suites.png to --out.

With --check results stay as they are: the benchmarks named are trained again on other seeds, in a new folder, and their
scores must not be lower than those in scores.json, by a one-sided Mann-Whitney test at 1 %, with Holm's correction.
Exit code 1 if any is. An undefined score counts as the lowest.
"""

import argparse
import datetime
import fcntl
import itertools
import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import page
from scipy.stats import mannwhitneyu

from rlref import stats, tuned
from rlref.cli import use_compilation_cache
from rlref.cli.terminal import Terminal, exit_code
from rlref.envs.suites import is_installed
from rlref.errors import Stopped, UsageError
from rlref.reports import reference
from rlref.runs import files
from rlref.runs.run import Run
from rlref.search import variants
from rlref.settings import in_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "scripts" / "results"
SUITES = {
    "classic": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    "minatar": tuple(f"{game}-MinAtar" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
    "bsuite": tuple(
        f"{task}-bsuite"
        for task in ("Catch", "DeepSea", "DiscountingChain", "MemoryChain", "SimpleBandit", "UmbrellaChain")
    ),
}
OTHER_SUITES = {  # of rlref/envs/suites, where the suite is installed: for PPO, but for what OTHER_AGENTS says
    "brax": ("brax:inverted_pendulum", "brax:halfcheetah"),
    "playground": ("playground:CartpoleBalance", "playground:CartpoleSwingup"),
    "navix": ("navix:Navix-Empty-8x8-v0", "navix:Navix-DoorKey-6x6-v0"),
    "jumanji": ("jumanji:Snake-v1",),
    "pgx": ("pgx:minatar-breakout",),
    "craftax": ("craftax:Craftax-Classic-Symbolic-v1",),
    "gymnasium": tuple(
        f"gymnasium:{robot}-v5" for robot in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "Swimmer")
    ),
}
OTHER_AGENTS = {
    "gymnasium:HalfCheetah-v5": ("ppo", "cem"),
    "gymnasium:Hopper-v5": ("ppo", "cem"),
    "gymnasium:Swimmer-v5": ("cem",),
}
EVAL_EVERY = 15  # updates between evaluations, by 10 episodes of each seed, of what is in BEST_MEAN
FIRST_SEED = {"gymnasium": 1000}  # others than ablation.py's, which settings were found on
AGENTS = ("ppo", "dqn", "cem")
CONTINUOUS = ("MountainCarContinuous-v0", "Pendulum-v1")  # nothing for DQN
BENCHMARKS = {
    f"{agent}/{env_id}": suite
    for suite, env_ids in SUITES.items()
    for env_id in env_ids
    for agent in AGENTS
    if not (agent == "dqn" and env_id in CONTINUOUS)
} | {
    f"{agent}/{env_id}": suite
    for suite, env_ids in OTHER_SUITES.items()
    for env_id in env_ids
    for agent in OTHER_AGENTS.get(env_id, ("ppo",))
}
BENCHMARKS["dqn/Breakout-MinAtar@5000000"] = "minatar"
NUM_SEEDS = {name: {"classic": 32, "bsuite": 32, "gymnasium": 10}.get(suite, 8) for name, suite in BENCHMARKS.items()}
NUM_SEEDS |= {"ppo/gymnasium:Ant-v5": 5, "ppo/gymnasium:Humanoid-v5": 5, "cem/gymnasium:HalfCheetah-v5": 5}
TARGETS = {  # of the IQM: rlref's own, unchanged since the table has had them
    "ppo/CartPole-v1": 500.0,
    "ppo/Acrobot-v1": -80.0,
    "ppo/MountainCar-v0": -110.0,
    "ppo/Pendulum-v1": -180.0,
    "ppo/MountainCarContinuous-v0": 90.0,
    "ppo/Breakout-MinAtar": 40.0,
    "dqn/CartPole-v1": 495.0,
    "dqn/Acrobot-v1": -82.0,
    "dqn/MountainCar-v0": -115.0,
    "dqn/Breakout-MinAtar": 15.0,
    "cem/CartPole-v1": 500.0,
    "cem/Acrobot-v1": -82.0,
    "cem/MountainCarContinuous-v0": 92.0,
    "cem/Pendulum-v1": -180.0,
}
EVERY_SEED = ("ppo/CartPole-v1",)  # where the worst seed has to reach it
# As their documentation has it: CleanRL's PPO and JAX DQN over 3 seeds, mean and standard deviation; gymnax-blines'
# best agent, PPO or ES, one seed; PureJaxRL's curves. Of SpaceInvaders-MinAtar there are scores by its old rules alone.
PUBLISHED = {
    "ppo/CartPole-v1": "CleanRL 490 ± 6, gymnax-blines 500",
    "ppo/Acrobot-v1": "CleanRL -86.4 ± 1.3, gymnax-blines -80",
    "ppo/MountainCar-v0": "CleanRL -200, gymnax-blines -118",
    "ppo/MountainCarContinuous-v0": "gymnax-blines 92",
    "ppo/Pendulum-v1": "gymnax-blines -130",
    "ppo/Asterix-MinAtar": "gymnax-blines 15",
    "ppo/Breakout-MinAtar": "CleanRL ~38, gymnax-blines 28, PureJaxRL ~40 ± 15",
    "ppo/Freeway-MinAtar": "gymnax-blines 58",
    "dqn/CartPole-v1": "CleanRL 498 ± 2",
    "dqn/Acrobot-v1": "CleanRL -88.9 ± 1.6",
    "dqn/MountainCar-v0": "CleanRL -189 ± 12",
    "ppo/playground:CartpoleBalance": "brax 999 (50M steps), SLM-Lab 968 (100M)",
    "ppo/playground:CartpoleSwingup": "brax 682 (50M steps), SLM-Lab 729 (100M)",
    "ppo/gymnasium:HalfCheetah-v5": "CleanRL 1443 ± 46 (v4), SB3's zoo 5819 ± 664 (v3)",
    "ppo/gymnasium:Hopper-v5": "CleanRL 2383 ± 272 (v4), SB3's zoo 2410 ± 10 (v3)",
    "ppo/gymnasium:Walker2d-v5": "CleanRL 2288 ± 572 (v4), SB3's zoo 3479 ± 822 (v3)",
    "ppo/gymnasium:Ant-v5": "SB3's zoo 1327 ± 452 (v3)",
    "ppo/gymnasium:Humanoid-v5": "CleanRL 716 ± 49 (v4)",
    "cem/gymnasium:Swimmer-v5": "ARS in SB3's zoo 355 ± 13 (2M steps)",
    "cem/gymnasium:Hopper-v5": "ARS in SB3's zoo 3344 ± 6 (7M steps)",
    "cem/gymnasium:HalfCheetah-v5": "ARS in SB3's zoo 4815 ± 1341 (12M steps)",
}
# Tianshou's, 10 seeds of MuJoCo v3: the mean over seeds of an evaluation's episodes, the best within 1e6 steps, and the
# standard deviation over seeds there (with n, not n - 1). Actions are sampled: these are of March 2021, and PPO's
# `deterministic_eval` came a month later (its pull requests 330 and 354).
BEST_MEAN = {
    "ppo/gymnasium:HalfCheetah-v5": (5784, 1244),
    "ppo/gymnasium:Hopper-v5": (2609, 701),
    "ppo/gymnasium:Walker2d-v5": (3589, 757),
    "ppo/gymnasium:Ant-v5": (3258, 1079),
    "ppo/gymnasium:Humanoid-v5": (787, 193),
}
MUJOCO = """\
MuJoCo, by gymnasium. IQM and mean are of training episodes, as everywhere. "Best, sampled" is by the rule of Tianshou's
benchmark, and is what compares with it: about every 30,000 steps each seed plays ten episodes, with sampled actions as
there; of the means over all seeds the greatest, ± the standard deviation over seeds there. "Best, greedy" is the same
of episodes that play the policy's mean. Both pick their own best moment, and luck helps a mean over few seeds more than
one over many: Tianshou's are of ten everywhere, Ant's and Humanoid's here of five.

What differs from Tianshou's: its networks have tanh and no layer norm, here swish and layer norm; 64 environments of 32
steps are 8 of 256 here; it computes advantages again in every epoch; its 1e6 steps are the first third of a training of
3e6, whose learning rate is still two thirds of the first, where here it falls to 0; it rescales actions, which changes
something on Humanoid alone, whose bounds are not ±1. And the environments: these are version 5, Tianshou's and the
zoo's version 3, CleanRL's 4. Since version 4 a step after which a robot is no longer healthy pays nothing for health
(HalfCheetah never did); both of Walker2d's feet have the friction 1.9, where the left one had .9; Ant and Humanoid show
contact forces and charge for them. Humanoid's robot is another one since gym 0.21, by which results are "not
comparable", as gymnasium's documentation has it, and Tianshou's gym was 0.17.3: its two numbers decide nothing. The
zoo's are of one agent, ± over its episodes. PPO's one setting for all was found on HalfCheetah, Hopper and Walker2d, on
other seeds: [the ablation](ablation.md). CEM searches linear policies of normalised observations.
"""
CHECK_FIRST_SEED = 10_000  # far from those of the table
LEVEL = 0.01  # of the test against them


def parsed(name: str) -> tuple[str, str, dict[str, int]]:
    """A benchmark's agent, its environment's ID, and the settings in which it is not as tuned.py has it."""
    agent, _, rest = name.partition("/")
    env_id, _, steps = rest.partition("@")
    return agent, env_id, {"total_timesteps": int(steps)} if steps else {}


def trained(name: str, folder: Path, num_seeds: int | None, seed: int | None = None) -> Run:
    """The run of a benchmark, from where its folder is; seeds from `seed` on, or from the table's own first."""
    agent, env_id, settings = parsed(name)
    seed = FIRST_SEED.get(BENCHMARKS[name], 0) if seed is None else seed
    with Terminal() as display:
        display.say(f"{name}, seeds from {seed}")
        return variants.train(
            agent,
            tuned.config(agent, env_id, **settings),
            {"tuned": {}},
            num_seeds=NUM_SEEDS[name] if num_seeds is None else num_seeds,
            seed=seed,
            eval_every=EVAL_EVERY if name in BEST_MEAN else 0,
            folder=folder / name,
            display=display,
        )["tuned"]


def row_of(name: str, run: Run) -> dict[str, Any]:
    """What is kept of a benchmark."""
    assert run.path is not None
    returns = run.metrics[run.score]
    updates = np.unique(np.geomspace(1, returns.shape[1], 80).astype(int)) - 1  # as the picture's axis has it
    agent, env_id, _ = parsed(name)
    known = tuned.tuned(agent, env_id)
    environment = files.read_json(run.path / "environment.json")
    return {
        "settings": in_json(run.config),
        "how": known.how if known else "the agent's defaults",
        "steps_per_seed": int(run.metrics["env_steps"][:, -1].mean()),  # CEM's seeds differ
        "random": reference.random_return(env_id),
        **{key: x for key, x in run.summary.items() if key not in ("findings", "steps_per_second")},
        "findings": [f"{x['severity']} {x['check']}" for x in run.summary["findings"]],
        "versions": environment["versions"],
        "devices": environment["devices"],
        "curve_steps": run.metrics["env_steps"][:, updates].mean(axis=0).round().tolist(),
        "curves": rounded(returns[:, updates]),
    } | evaluations(run)


def rounded(x: Any) -> list[list[float | None]]:
    return [[None if np.isnan(y) else float(f"{y:.4g}") for y in row] for row in x]


def evaluations(run: Run) -> dict[str, Any]:
    """Of a run with evaluations, sampled and greedy: when they were, and each seed's mean return of its episodes."""
    if (sampled := run.metrics.get("eval_return_sampled")) is None:
        return {}
    evaluated = ~np.isnan(sampled).all(axis=0)  # not every update is
    found: dict[str, Any] = {"steps": run.metrics["env_steps"][0, evaluated].astype(int).tolist()}
    for kind in ("sampled", "greedy"):
        found[kind] = rounded(run.metrics[f"eval_return_{kind}"][:, evaluated])
    return {"evaluations": found}


def best_mean(returns: Any) -> tuple[float, float]:
    """The greatest mean over seeds of evaluations `[seed][moment]`, and the standard deviation over seeds there.

    An undefined return, of a diverged seed, counts as the lowest of all.
    """
    x = np.asarray(returns, float)
    x = np.nan_to_num(x, nan=np.nanmin(x))
    best = int(x.mean(axis=0).argmax())
    return float(x[:, best].mean()), float(x[:, best].std())


def spread(mean: float, std: float) -> str:
    return f"{mean:.0f} ± {std:.0f}"


def number(x: float | None) -> str:
    """A score in a table: undefined ones come back from JSON as None."""
    return "undefined" if x is None or x != x else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def target_text(name: str, row: dict[str, Any]) -> str:
    if name not in TARGETS:
        return ""
    judged = row["scores"] if name in EVERY_SEED else [row["iqm"]]
    reached = all(x is not None and x >= TARGETS[name] for x in judged)
    each = ", every seed" if name in EVERY_SEED else ""
    return f"{TARGETS[name]:g}{each}: {'reached' if reached else 'MISSED'}"


def cells(name: str, r: dict[str, Any]) -> dict[str, str]:
    """A benchmark's row of the table, by column."""
    agent, env_id, settings = parsed(name)
    low, high = r["iqm_interval_95"]
    undefined = sum(x is None or x != x for x in r["scores"])
    first = FIRST_SEED.get(BENCHMARKS[name])
    more = f" --seed {first}" * bool(first) + f" --eval-every {EVAL_EVERY}" * (name in BEST_MEAN)
    best = {kind: spread(*best_mean(x)) for kind, x in r.get("evaluations", {}).items() if kind != "steps"}
    defined = np.asarray([x for x in r["scores"] if x is not None and x == x])
    more += "".join(f" --{key.replace('_', '-')} {value}" for key, value in settings.items())
    return {
        "environment": env_id,
        "agent": agent.upper(),
        "IQM [95 % interval]": f"{number(r['iqm'])} [{number(low)}, {number(high)}]"
        + f", {undefined} seeds undefined" * bool(undefined),
        "mean ± std": f"{number(defined.mean())} ± {number(defined.std())}" if defined.size else "undefined",
        "worst seed": number(r["min"]),
        "best": number(r["max"]),
        "random": number(r["random"]),
        "best, sampled": best.get("sampled", ""),
        "best, greedy": best.get("greedy", ""),
        "Tianshou's": spread(*BEST_MEAN[name]) if name in BEST_MEAN else "",
        "target": target_text(name, r),
        "published elsewhere": PUBLISHED.get(name, ""),
        "seeds x steps": f"{len(r['scores'])} x {r['steps_per_seed']:,}",
        "command": f"`rlref train {agent} --env-id {env_id} --num-seeds {len(r['scores'])}{more}`",
    }


def table(results: dict[str, Any], suites: Collection[str]) -> str:
    """A line per benchmark, those of an environment together, and the command that gives it."""
    compared = ("best, sampled", "Tianshou's", "best, greedy") if "gymnasium" in suites else ("target",)
    columns = (
        "environment", "agent", "IQM [95 % interval]", "mean ± std", "worst seed", "best", "random", *compared,
        "published elsewhere", "seeds x steps", "command",
    )  # fmt: skip
    rows = [cells(name, r) for name, r in results.items() if BENCHMARKS[name] in suites]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row[column] for column in columns) + " |" for row in rows)])


def report(results: dict[str, Any]) -> str:
    """The tables, and what has not been run."""
    missing = [name for name in BENCHMARKS if name not in results]
    parts = [table(results, ("classic", "minatar"))]
    if any(BENCHMARKS[name] == "bsuite" for name in results):
        parts.append(f"<details><summary>bsuite</summary>\n\n{table(results, ('bsuite',))}\n\n</details>")
    if others := {x for x in OTHER_SUITES if any(BENCHMARKS[name] == x for name in results)}:
        parts.append("Environments of [other suites](../../rlref/envs/suites/README.md), which are extras:")
        parts.append("![Return over environment steps, every seed](scores_suites.png)")
        parts.append(table(results, others - {"gymnasium"}))
    if "gymnasium" in others:
        parts += [MUJOCO, table(results, ("gymnasium",)), against_tianshou(results)]
    trained_on: dict[str, list[str]] = {}
    for name, r in results.items():
        kinds = " and ".join(sorted({*r["devices"]}))
        trained_on.setdefault(f"{kinds} with jax {r['versions']['jax']}", []).append(name)
    most, *fewer = sorted(trained_on, key=lambda x: -len(trained_on[x]))
    parts.append(f"Trained on {most}" + "".join(f"; on {x}: {', '.join(trained_on[x])}" for x in fewer) + ".")
    of_version: dict[str, list[str]] = {}
    for name, r in results.items():
        of_version.setdefault(r["versions"]["rlref"], []).append(name)
    newest = max(of_version, key=lambda x: [*map(int, x.split("."))], default="")
    parts += [f"Trained by rlref {x}: {', '.join(of_version[x])}." for x in of_version if x != newest]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def against_tianshou(results: dict[str, Any]) -> str:
    """Which rows' best sampled evaluations are below its mean, and which not; of Humanoid, another robot, neither."""
    apart: dict[str, list[str]] = {"Not below": [], "below": []}
    for name, (theirs, _) in BEST_MEAN.items():
        if "evaluations" in results.get(name, {}) and "Humanoid" not in name:
            ours, _ = best_mean(results[name]["evaluations"]["sampled"])
            apart["below" if ours < theirs else "Not below"].append(parsed(name)[1].partition(":")[2])
    return "; ".join(f"{what} Tianshou's mean: {', '.join(names) or 'none'}" for what, names in apart.items()) + "."


def figure(results: dict[str, Any], shown: Iterable[str], path: Path) -> None:
    """Learning curves, a panel per environment that is `shown`: each seed thin, their IQM thick, a colour per agent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    env_ids = [env_id for env_id in shown if any(name.endswith(f"/{env_id}") for name in results)]
    if not env_ids:
        return
    columns = min(5, len(env_ids))
    rows = -(-len(env_ids) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(3.2 * columns, 2.6 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(env_ids) :]:
        ax.set_visible(False)
    for ax, env_id in zip(axes.flat, env_ids, strict=False):
        for number, agent in enumerate(AGENTS):
            if (r := results.get(f"{agent}/{env_id}")) is None:
                continue
            steps, curves = np.asarray(r["curve_steps"]), np.asarray(r["curves"], float)
            ax.plot(steps, curves.T, color=f"C{number}", alpha=0.12, linewidth=0.7)
            ax.plot(steps, [stats.iqm(x) for x in curves.T], color=f"C{number}", linewidth=2, label=agent.upper())
            ax.axhline(r["random"], color="0.5", linewidth=0.8, linestyle=":")
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter("")  # numbers between powers of ten run into each other
        ax.set_title(env_id, fontsize=10)
        ax.tick_params(labelsize=8)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=7, loc="best")
    for ax in axes[-1]:
        ax.set_xlabel("environment steps", fontsize=9)
    for ax in axes[:, 0]:
        ax.set_ylabel("return", fontsize=9)
    fig.savefig(path, dpi=110)


def check(names: Sequence[str], committed: dict[str, Any], folder: Path, num_seeds: int | None) -> int:
    """Train again on fresh seeds, and test each benchmark's scores against those committed; returns the exit code.

    Rows of too few seeds for the test to find anything among so many are said and left out. Raises UsageError if
    nothing is committed, or no row is left.
    """
    if absent := [name for name in names if name not in committed]:
        raise UsageError(f"no scores of {', '.join(absent)} are committed, to check against")
    left_out = {}
    for name in names:
        sizes = num_seeds or NUM_SEEDS[name], len(committed[name]["scores"])
        worst = mannwhitneyu(-np.arange(sizes[0]), np.arange(1, 1 + sizes[1]), alternative="less").pvalue * len(names)
        if worst >= LEVEL:
            left_out[name] = (
                f"{sizes[0]} fresh seeds of {name} against {sizes[1]} cannot be found lower: if all were, p would be "
                f"{worst:.2g} for {len(names)} benchmarks, and {LEVEL} is asked for; more --num-seeds, or fewer names"
            )
    if len(left_out) == len(names):
        raise UsageError(next(iter(left_out.values())))
    for why in left_out.values():
        print(f"left out: {why}")
    names = [name for name in names if name not in left_out]
    fresh, p = {}, []
    for name in names:
        fresh[name] = trained(name, folder, num_seeds, CHECK_FIRST_SEED).scores
        before = np.asarray(committed[name]["scores"], float)
        worst = min(np.nanmin(before), np.nanmin(fresh[name], initial=np.inf))  # where a seed's score is undefined
        now, then = np.nan_to_num(fresh[name], nan=worst), np.nan_to_num(before, nan=worst)
        # All of them equal: nothing to test.
        same = np.ptp(np.concatenate([now, then])) == 0
        p.append(1.0 if same else float(mannwhitneyu(now, then, alternative="less").pvalue))
    lower = []
    for name, x, corrected in zip(names, fresh.values(), stats.holm(p), strict=True):
        verdict = "LOWER" if corrected < LEVEL else "not lower"
        lower += [name] if corrected < LEVEL else []
        print(
            f"{name}: IQM {stats.iqm(x):.4g} on {len(x)} fresh seeds, {committed[name]['iqm']:.4g} on "
            f"{len(committed[name]['scores'])} committed: {verdict} (p = {corrected:.2g})"
        )
    return 1 if lower else 0


def read(path: Path) -> dict[str, Any]:
    """The results so far. Raises UsageError if the file is damaged."""
    try:
        results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        table(results, (*SUITES, *OTHER_SUITES))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}; restore it, or delete it") from error
    return results


def write(out: Path, name: str, row: dict[str, Any]) -> None:
    """Add a benchmark to the results, after those of other processes."""
    path = out / "scores.json"
    lock = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = read(path) | {name: row}
        results = {k: results[k] for k in BENCHMARKS if k in results}
        text = json.dumps(json.loads(files.json_text(results))) + "\n"
        files.write(path, lambda file: file.write(text.encode()))
        page.put(out / "scores.md", "scores", report(results))
        figure(results, [*SUITES["classic"], *SUITES["minatar"]], out / "scores.png")
        figure(results, itertools.chain(*OTHER_SUITES.values()), out / "scores_suites.png")
    finally:
        os.close(lock)


def chosen(given: Sequence[str]) -> list[str]:
    """The benchmarks that names stand for. Raises UsageError for one that stands for none."""
    found = {}
    for word in given:
        found[word] = {n for n, suite in BENCHMARKS.items() if word in (n, suite, *parsed(n)[:2])}
        if not found[word]:
            words = [*AGENTS, *SUITES, *OTHER_SUITES]
            raise UsageError(f"there is no benchmark {word}; there are {', '.join([*words, *BENCHMARKS])}")
    return [name for name in BENCHMARKS if (any(name in x for x in found.values()) if given else installed(name))]


def installed(name: str) -> bool:
    """Whether what a benchmark's environment comes from is there."""
    suite = BENCHMARKS[name]
    return suite not in OTHER_SUITES or is_installed(suite)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an agent, an environment, a suite, or agent/env")
    parser.add_argument("--check", action="store_true", help="train on fresh seeds, and compare with what is committed")
    parser.add_argument("--num-seeds", type=int, help="instead of the benchmark's own number")
    parser.add_argument("--run-dir", type=Path, help="where runs go (default: runs/scores, with --check a new one)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are (default: scripts/results)")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    use_compilation_cache()
    stamp = datetime.datetime.now().strftime("check-%Y%m%d-%H%M%S")
    folder = options.run_dir or ROOT / "runs" / (stamp if options.check else "scores")
    path = out / "scores.json"
    try:
        names = chosen(options.names)
        if options.check:
            return check(names, read(path), folder, options.num_seeds)
        if options.num_seeds is not None and out == RESULTS:
            raise UsageError("the table has its own numbers of seeds; --num-seeds takes --check, or another --out")
        with files.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        read(path)
        for name in names:
            row = row_of(name, trained(name, folder, options.num_seeds))
            write(out, name, row)
            print(table({name: row}, [BENCHMARKS[name]]).splitlines()[-1], flush=True)
    except UsageError as error:
        parser.error(str(error))
    except (Stopped, KeyboardInterrupt) as stopped:
        signal = str(stopped) or "SIGINT"
        how = f", with --run-dir {folder}" if options.check and not options.run_dir else ""
        print(f"stopped by {signal}; the same command goes on{how}", file=sys.stderr)
        return exit_code(signal)
    return 0


if __name__ == "__main__":
    sys.exit(main())
