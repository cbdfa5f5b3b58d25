"""How far can the verdicts be believed? False alarms on healthy runs, hits on unhealthy ones.

    python scripts/calibrate_verdicts.py train            train what is missing, into runs/calibration/
    python scripts/calibrate_verdicts.py train ppo/       that whose name begins so
    python scripts/calibrate_verdicts.py                  judge what is there, and write the tables
    python scripts/calibrate_verdicts.py --memory         the same for ppo_rnn, the agent with a memory: a corpus of its
                                                          own, with the bugs of its memory alone

Healthy runs have settings that are known to work, 32 seeds each; unhealthy ones have settings that cannot work, or
a bug of `mutants.py` planted in the agent's file. A bug that leaves the compiled program of every environment tried as
it was takes no effect there, and is left out. What is trained is kept: after a change of an agent's file, remove it.
"""

import argparse
import contextlib
import fcntl
import functools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import page
from mutants import MUTANTS, plant
from mutants_rnn import OWN, PPO_RNN
from scipy import stats

import rlref
from rlref.contract import load_agent
from rlref.envs.ids import make_env
from rlref.health.checks import CHECKS
from rlref.health.engine import diagnose
from rlref.health.findings import Finding
from rlref.stats import last

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "calibration"
RESULTS = ROOT / "scripts" / "results" / "verdicts.json"
RESULTS_MEMORY = RESULTS.with_name("verdicts-memory.json")
PAGE = ROOT / "rlref" / "health" / "calibration.md"


class Case(NamedTuple):
    """A training of the corpus."""

    agent: str
    env_id: str
    fault: str = ""
    """what is wrong with it; '' for a healthy one"""
    settings: dict[str, Any] = {}  # noqa: RUF012
    num_seeds: int = 32
    env: str = ""
    """what is done to the environment: '', "rewards x 100", "no ends", "no rewards" """
    edits: tuple[tuple[str, str], ...] = ()
    """replacements in the agent's file"""
    component: str = ""
    """of a planted bug: the part of the agent that it is in"""

    @property
    def name(self) -> str:
        short = " short" if self.agent != "cem" and SHORT[self.agent].items() <= self.settings.items() else ""
        return f"{self.agent}/{self.env_id}/{self.fault or 'healthy'}{short * (not self.fault)}"

    @property
    def path(self) -> Path:
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in self.name)
        return RUNS / f"{safe}.npz"


def settings_of(agent: str, env_id: str) -> dict[str, Any]:
    return SETTINGS.get((agent, env_id), {})


# Of healthy runs; the agent's defaults where there is nothing. What rlref/tuned.py says has changed since.
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "Catch-bsuite"): {"total_timesteps": 200_000},
    ("ppo", "Pendulum-v1"): {
        "num_envs": 16,
        "num_minibatches": 16,
        "update_epochs": 10,
        "learning_rate": 1e-3,
        "gamma": 0.9,
        "ent_coef": 0.0,
        "clip_vloss": False,
        "normalize_observations": True,
        "scale_rewards": True,
    },
    ("dqn", "Acrobot-v1"): {"learning_rate": 5e-4, "exploration_fraction": 0.3, "end_e": 0.01},
    ("dqn", "Catch-bsuite"): {"total_timesteps": 200_000},
    ("dqn", "MountainCar-v0"): {
        "num_envs": 5,
        "train_frequency": 5,
        "learning_rate": 4e-3,
        "anneal_lr": True,
        "gamma": 0.98,
        "buffer_size": 50_000,
        "exploration_fraction": 0.2,
        "end_e": 0.02,
    },
    ("cem", "MountainCarContinuous-v0"): {
        "num_generations": 30,
        "population_size": 256,
        "elite_fraction": 0.05,
        "num_rollouts": 1,
        "init_variance": 100.0,
        "extra_variance": 100.0,
    },
    ("cem", "Pendulum-v1"): {
        "num_generations": 60,
        "population_size": 256,
        "elite_fraction": 0.05,
        "num_rollouts": 16,
        "extra_variance_fraction": 2 / 3,
        "smoothing": 0.1,
        "hidden_sizes": (8,),
    },
}
HEALTHY = {
    "ppo": ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "Catch-bsuite"),
    "cem": ("CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Pendulum-v1"),
    "dqn": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Catch-bsuite"),
    "ppo_rnn": ("PositionOnlyCartPole-v1", "MemoryChain-bsuite"),
}
THREE, MEMORY = ("ppo", "dqn", "cem"), ("ppo_rnn",)
"""the agents of a corpus"""
BUGS = {**MUTANTS, "ppo_rnn": [bug for bug in PPO_RNN if bug.component in OWN]}
GOOD = {
    "CartPole-v1": 150, "Acrobot-v1": -110, "Pendulum-v1": -400, "Catch-bsuite": 0.6, "MountainCar-v0": -150,
    "MountainCarContinuous-v0": 85, "PositionOnlyCartPole-v1": 150, "MemoryChain-bsuite": 0.9,
}  # fmt: skip
"""the score from which a seed of a healthy training counts as healthy: far above a random policy's"""
SHORT: dict[str, dict[str, Any]] = {
    "ppo": {"total_timesteps": 150_000},
    "dqn": {"total_timesteps": 100_000},
    "cem": {},
    "ppo_rnn": {"total_timesteps": 150_000},
}
"""what unhealthy runs are cut to: time enough for a healthy one to have learned"""
FAULT_SEEDS, BUG_SEEDS = 8, 4
# They do not touch the training; that of environments in which all is allowed, one choice at a time; a GRU's.
UNTRAINED = ("metrics", "evaluation", "action mask", "several choices", "memory's metrics", "memory's cell")
TRIED = {
    "ppo": ("CartPole-v1", "Pendulum-v1"),
    "dqn": ("CartPole-v1",),
    "cem": ("CartPole-v1", "Pendulum-v1"),
    "ppo_rnn": ("PositionOnlyCartPole-v1", "MemoryChain-bsuite"),
}
"""where bugs are planted: in the first one where they take effect"""

# The policy that collects is one that learning left up to 8 updates ago.
STALE = (
    ("    obs_moments: Moments | None  #", "    stale: Any\n    obs_moments: Moments | None  #"),
    (
        "    state, rollout = collect(task, replace(state, key=key), key_collect)\n",
        "    stale = jax.tree.map(lambda a, b: jnp.where(step % 8 == 0, a, b), state.params, state.stale)\n"
        "    live, state = state.params, replace(state, key=key, stale=stale, params=stale)\n"
        "    state, rollout = collect(task, state, key_collect)\n"
        "    state = replace(state, params=live)\n",
    ),
)
STALE_FIRST = {
    "ppo": (
        "        params=params,\n        opt_state",
        "        params=params,\n        stale=params,\n        opt_state",
    ),
    "ppo_rnn": ("*episodes, obs_moments, *scaling)", "*episodes, params, obs_moments, *scaling)"),
}
MEMORY_FAULTS: dict[str, tuple[dict[str, Any], tuple[tuple[str, str], ...]]] = {  # settings, and edits of the file
    "sequences of one step": ({"sequence_length": 1}, ()),
    "inputs of the memory x 100": ({}, (("gates, kernel_init=orthogonal(1.0)", "gates, kernel_init=orthogonal(1e2)"),)),
    "weights of the memory x 3": ({}, (("orthogonal(1.0)(key, (shape[0]", "orthogonal(3.0)(key, (shape[0]"),)),
}


def corpus(agents: Sequence[str] = THREE) -> list[Case]:
    """All cases of these agents; healthy ones first."""
    cases = [Case(a, e, settings=settings_of(a, e)) for a in agents for e in HEALTHY[a]]
    cases += [Case(a, e, settings=settings_of(a, e) | SHORT[a]) for a in agents for e in TRIED[a] if a != "cem"]
    for agent in agents:
        for env_id in HEALTHY[agent]:
            base = settings_of(agent, env_id) | ({} if agent == "cem" else SHORT[agent])

            def case(fault: str, extra: dict[str, Any], *, agent=agent, env_id=env_id, base=base, **more: Any) -> Case:
                return Case(agent, env_id, fault, base | extra, FAULT_SEEDS, **more)

            if agent != "cem":
                rate = base.get("learning_rate", 1e-3 if agent == "ppo_rnn" else 2.5e-4)
                scaled = {} if agent == "dqn" else {"scale_rewards": False}
                greedy = {"start_e": 0.0, "end_e": 0.0} if agent == "dqn" else {"ent_coef": 0.0}
                frozen = {"learning_rate": 0.0} if agent == "dqn" else {"vf_coef": 0.0}
                cases += [
                    case("learning rate x 30", {"learning_rate": 30 * rate}),
                    case("no exploration, rewards x 100", greedy | scaled, env="rewards x 100"),
                    case("frozen critic", frozen),
                    case("stale data", {}, edits=(*STALE, STALE_FIRST[agent]))
                    if agent != "dqn"
                    else case(
                        "stale data",
                        {"buffer_size": base.get("buffer_size", 10_000)},
                        edits=mutant("dqn", "buffer stops when it is full"),
                    ),
                ]
                if agent == "ppo_rnn":
                    cases += [case(name, more, edits=edits) for name, (more, edits) in MEMORY_FAULTS.items()]
                elif env_id not in ("CartPole-v1", "Catch-bsuite"):  # they cannot go on after their ends
                    cases.append(case("gamma 1 without ends", {"gamma": 1.0} | scaled, env="no ends"))
            cases.append(case("no rewards", {}, env="no rewards"))
    for agent in agents:
        for env_id in TRIED[agent]:
            settings = settings_of(agent, env_id) | SHORT[agent]
            for bug in BUGS[agent]:
                if bug.component in UNTRAINED:
                    continue
                edits = ((bug.old, bug.new),)
                cases.append(Case(agent, env_id, f"bug: {bug.name}", settings, BUG_SEEDS, "", edits, bug.component))
    return cases


def mutant(agent: str, name: str) -> tuple[tuple[str, str], ...]:
    """The replacement of a bug of the catalogue."""
    (bug,) = [m for m in MUTANTS[agent] if m.name == name]
    return ((bug.old, bug.new),)


class Changed:
    """A gymnax environment with other rewards or ends."""

    def __init__(self, env: Any, how: str):
        self.env, self.how = env, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        import jax.numpy as jnp

        if self.how == "no ends":
            obs, state, reward, _, info = self.env.step_env(key, state, action, params)
            never = jnp.bool(False)
            return obs, state, reward, never, never, {**info, "final_observation": obs}
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        factor = {"rewards x 100": 100.0, "no rewards": 0.0}[self.how]
        return obs, state, factor * reward, terminated, truncated, info


def module_of(case: Case, folder: Path) -> ModuleType:
    """The agent's file with the case's edits. Raises ValueError unless each old text occurs exactly once."""
    source = plant(case.name, (ROOT / "rlref" / f"{case.agent}.py").read_text(), case.edits)
    path = Path(tempfile.mkdtemp(dir=folder)) / f"{case.agent}.py"
    path.write_text(source)
    return load_agent(path)


def about(case: Case) -> dict[str, Any]:
    """What was kept of a case beside its metrics."""
    with np.load(case.path) as file:
        return json.loads(str(file["about"]))


def wanted(case: Case) -> bool:
    """Whether it is to be trained: of a bug, one in the first environment in which it takes effect."""
    first = case._replace(env_id=TRIED[case.agent][0]) if case.component else case
    return case.name == first.name or (first.path.exists() and "no effect" in about(first))


def lowered(module: ModuleType, config: Any, env: Any, params: Any) -> str:
    """The program of one seed's initialisation and update, before XLA."""
    import jax

    agent = module.make(config, env, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(agent.init, key)
    step = jax.ShapeDtypeStruct((), "int32")
    return jax.jit(agent.init).lower(key).as_text() + jax.jit(agent.update).lower(state, step).as_text()


@functools.cache
def without_bug(agent: str, env_id: str) -> str:
    """What `lowered` gives of the agent as it is."""
    module = load_agent(agent)
    env, params = make_env(env_id)
    config = module.Config(env_id=env_id, **(settings_of(agent, env_id) | SHORT[agent]))
    return lowered(module, config, env, params)


def train(case: Case, folder: Path) -> str:
    """Train a case and keep its metrics; returns what came of it."""
    module = module_of(case, folder)
    env, params = make_env(case.env_id)
    env = Changed(env, case.env) if case.env else env
    config = module.Config(env_id=case.env_id, **case.settings)
    kept: dict[str, Any] = {"agent": case.agent, "config": vars(config)}
    try:
        if case.component and lowered(module, config, env, params) == without_bug(case.agent, case.env_id):
            np.savez(case.path, about=json.dumps(kept | {"no effect": True}))
            return "takes no effect"
        run = rlref.train(module, config, num_seeds=case.num_seeds, env=env, env_params=params)
    except Exception as error:  # a bug that shows by itself: nothing to diagnose
        np.savez(case.path, about=json.dumps(kept | {"error": f"{type(error).__name__}: {error}"[:200]}))
        return f"{type(error).__name__}"
    if run.summary["status"] == "interrupted":
        sys.exit(1)
    np.savez(case.path, about=json.dumps(kept), **run.metrics)  # type: ignore[arg-type]
    return f"{np.nanmedian(run.scores):.4g}"


def load(case: Case) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What was kept of a case: about it, and its metrics."""
    with np.load(case.path) as file:
        return json.loads(str(file["about"])), {name: file[name] for name in file if name != "about"}


def names(found: Sequence[Finding]) -> set[str]:
    """The checks of findings, and of what follows from them."""
    return {f.check for f in found}.union(*(names(f.follows) for f in found))


def judged(case: Case, rest: int) -> list[dict[str, Any]]:
    """What the verdicts say of each seed whose number is `rest` modulo 2, as of a run of its own."""
    kept, metrics = load(case)
    score, rows = scores(case), []
    for seed in range(rest, case.num_seeds, 2):
        # Without the throughput: what else the machine did is no fault of the run's.
        of_seed = {name: x[seed : seed + 1] for name, x in metrics.items() if name != "steps_per_second"}
        one = diagnose(of_seed, kept["config"]).findings
        rows.append(
            {
                "agent": case.agent,
                "found": sorted(names(one)),
                "leading": one[0].check if one and one[0].worst != "INFO" else "",
                "score": float(score[seed]),
            }
        )
    return rows


def alarms(found: Iterable[str]) -> list[str]:
    """Of checks, those that warn."""
    return [name for name in found if CHECKS[name].severity != "INFO"]


CRITIC = (
    "value_bias value_bound value_impossible advantage_mean explained_variance_zero explained_variance_negative "
    "overestimation_grows values_drift"
)
CAUSES = {
    "ppo": {
        "learning rate x 30": "update_ratio_high kl_high kl_huge kl_rises",
        "no exploration, rewards x 100": "targets_huge entropy_collapse no_signal",
        "frozen critic": CRITIC,
        "stale data": "first_ratio_off kl_rises",
        "gamma 1 without ends": "undiscounted_without_ends values_drift",
        "no rewards": "no_signal",
        "action distribution": "first_ratio_off entropy_impossible entropy_maximal entropy_collapse kl_negative",
        "advantages": f"worse_than_start entropy_maximal {CRITIC}",
        "batch": f"first_ratio_off worse_than_start entropy_maximal {CRITIC}",
        "clipping of actions": "first_ratio_off",
        "entropy bonus": "entropy_impossible entropy_maximal entropy_collapse entropy_plateau",
        "gradient steps": "gradient_steps_off update_ratio_high kl_high kl_huge gradient_zero parameters_frozen "
        f"first_ratio_off ratio_never_moves {CRITIC}",
        "learning rate": "learning_rate_off update_ratio_high",
        "minibatches": "gradient_steps_off",
        "network": "first_ratio_off kl_negative dormant_units explained_variance_zero explained_variance_negative",
        "observation normalisation": "first_ratio_off dormant_units explained_variance_zero "
        "explained_variance_negative",
        "policy loss": "first_ratio_off ratio_never_moves worse_than_start entropy_maximal entropy_collapse kl_high "
        "kl_huge kl_rises",
        "random keys": "no_signal seeds_disagree",
        "reward scaling": f"targets_huge {CRITIC}",
        "rollout": "first_ratio_off value_bound value_impossible worse_than_start",
        "value loss": CRITIC,
    },
    "dqn": {
        "learning rate x 30": "update_ratio_high value_bound value_impossible",
        "no exploration, rewards x 100": "targets_huge no_signal policy_stuck",
        "frozen critic": "parameters_frozen",
        "stale data": "buffer_off sample_age_off",
        "gamma 1 without ends": "undiscounted_without_ends values_drift",
        "no rewards": "no_signal",
        "acting": "exploration_missing policy_stuck worse_than_start epsilon_off",
        "exploration": "exploration_missing epsilon_off policy_stuck no_signal",
        "gradient steps": "parameters_frozen gradient_steps_off update_ratio_high gradient_zero value_bound "
        "value_impossible",
        "learning rate": "learning_rate_off update_ratio_high parameters_frozen",
        "loss": f"update_ratio_high {CRITIC}",
        "network": "dormant_units explained_variance_zero explained_variance_negative",
        "next value": CRITIC,
        "random keys": "exploration_missing policy_stuck no_signal",
        "replay": "buffer_off sample_age_off gradient_steps_off explained_variance_zero explained_variance_negative",
        "returns": CRITIC,
        "target network": "target_frozen target_aliased value_bound value_impossible",
        "targets": CRITIC,
    },
    "cem": {
        "no rewards": "no_signal",
        "candidates": "candidates_alike search_collapse search_widens policy_apart",
        "elites": "elites_below elites_not_best",
        "environment": "no_signal",
        "extra variance": "extra_variance_off floor_not_held search_widens search_collapse",
        "fitness": "elites_below elites_not_best no_signal policy_apart",
        "observation normalisation": "no_signal no_progress policy_apart",
        "policy": "no_signal no_progress",
        "random keys": "no_signal policy_apart",
        "refit": "search_widens search_collapse floor_not_held policy_apart elites_not_best",
        "score": "elites_below elites_not_best policy_apart",
        "smoothing": "floor_not_held search_widens search_collapse",
    },
}
CAUSES["ppo_rnn"] = CAUSES["ppo"] | {
    "learning rate x 30": CAUSES["ppo"]["learning rate x 30"] + " memory_saturated memory_explodes",
    "sequences of one step": "memory_unused",
    "inputs of the memory x 100": "memory_saturated memory_unused",
    "weights of the memory x 3": "memory_explodes memory_saturated",
    "resets": "memory_unused first_ratio_off",
    "final observations": CRITIC,
    "memory carried on": "memory_unused first_ratio_off",
    "sequences": "memory_unused first_ratio_off",
    "learning through memories": "memory_unused first_ratio_off memory_explodes",
    "last action and reward": "first_ratio_off",
}
"""agent -> what is wrong, or the component that a planted bug is in -> the checks that name it"""


def is_right(case: Case, check: str) -> bool:
    """Whether a check names what is wrong."""
    return check in CAUSES[case.agent][case.component or case.fault].split()


def is_asked(check: str, agent: str) -> bool:
    """Whether a check is of agents like this one; one with a memory is asked PPO's as well."""
    return not {agent, "ppo" if agent in MEMORY else agent}.isdisjoint(CHECKS[check].kinds)


def scores(case: Case) -> np.ndarray:
    """The score of each seed; -inf where there is none."""
    metrics = load(case)[1]
    score = metrics["mean_policy_return" if "mean_policy_return" in metrics else "return_mean"]
    return np.nan_to_num(last(score), nan=-np.inf)


def does_harm(case: Case) -> bool:
    """Whether a fault's seeds score lower than the healthy ones of the same settings, p < .01 (Mann-Whitney)."""
    same = [c for c in corpus((case.agent,)) if not c.fault and c.env_id == case.env_id]
    return bool(stats.mannwhitneyu(scores(case), scores(same[-1]), alternative="less").pvalue < 0.01)


def percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if of else ""


class Tally:
    """Of seeds with a fault: how many there are, how many are warned of, and of how many the cause leads."""

    def __init__(self) -> None:
        self.seeds = self.hit = self.right = 0

    def add(self, case: Case, rows: list[dict[str, Any]]) -> None:
        self.seeds += len(rows)
        self.hit += sum(bool(alarms(row["found"])) for row in rows)
        self.right += sum(is_right(case, row["leading"]) for row in rows)

    def cells(self) -> str:
        return f"{self.seeds} | {percent(self.hit, self.seeds)} | {percent(self.right, self.seeds)}"


def judge(rest: int, agents: Sequence[str] = THREE) -> tuple[dict[str, Any], str]:
    """What the verdicts say of the seeds whose number is `rest` modulo 2: as data, and as tables."""
    cases = [case for case in corpus(agents) if case.path.exists() and {"no effect", "error"}.isdisjoint(about(case))]
    rows = {case.name: judged(case, rest) for case in cases}
    healthy = [case for case in cases if not case.fault]
    good = [row for case in healthy for row in rows[case.name] if row["score"] >= GOOD[case.env_id]]
    failed = [row for case in healthy for row in rows[case.name] if not row["score"] >= GOOD[case.env_id]]

    faults: dict[tuple[str, str], Tally] = {}
    harmless, idle, quiet, sick, mild = Tally(), 0, [], [], []
    for case in cases:
        if not case.fault:
            continue
        if case.component and not does_harm(case):
            harmless.add(case, rows[case.name])
            idle += 1
            continue
        if case.fault in MEMORY_FAULTS and not does_harm(case):
            mild.append(case)
            continue
        what = "planted bugs that do harm" if case.component else case.fault
        faults.setdefault((case.agent, what), Tally()).add(case, rows[case.name])
        sick += [(case, row) for row in rows[case.name]]
        if not any(alarms(row["found"]) for row in rows[case.name]):
            quiet.append(case)
    by_agent = {agent: [(c, row) for c, row in sick if c.agent == agent] for agent in agents}

    lines = [
        f"Healthy: {len(good)} seeds of {len(healthy)} trainings that reached what they should. {len(failed)} more did "
        f"not, and {sum(bool(alarms(row['found'])) for row in failed)} of those are warned of.",
        "",
        "| check | severity | false alarms | per seed | fires in unhealthy seeds | leads |",
        "|---|---|---|---|---|---|",
    ]
    worst = {"ERROR": 0.0, "WARN": 0.0, "INFO": 0.0}
    for name, one in CHECKS.items():
        if not any(is_asked(name, agent) for agent in agents):
            continue
        of = [row for row in good if is_asked(name, row["agent"])] if not one.shared_by_seeds else None
        if of is None:
            runs_of = [case for case in healthy if is_asked(name, case.agent)]
            count, total = sum(name in across(case, rest) for case in runs_of), len(runs_of)
        else:
            count, total = sum(name in row["found"] for row in of), len(of)
        share = count / total if total else 0.0
        worst[one.severity] = max(worst[one.severity], share)
        fires = sum(name in row["found"] for _, row in sick)
        leads = sum(name == row["leading"] for _, row in sick)
        unit = " runs" if one.shared_by_seeds else ""
        lines.append(
            f"| `{name}` | {one.severity} | {count} of {total}{unit} | {percent(count, total)} | {fires} | {leads} |"
        )
    lines += ["", "| agent | what is wrong | seeds | warned of | the cause leads |", "|---|---|---|---|---|"]
    for (agent, what), tally in sorted(faults.items()):
        lines.append(f"| {agent.upper()} | {what} | {tally.cells()} |")
    for agent, pairs in by_agent.items():
        of_agent = Tally()
        for case, row in pairs:
            of_agent.add(case, [row])
        lines.append(f"| {agent.upper()} | **all** | {of_agent.cells()} |")
    everything = Tally()
    for case, row in sick:
        everything.add(case, [row])
    lines.append(f"| all | **all** | {everything.cells()} |")
    bugs = [case for case in cases if case.component]
    lines += [
        "",
        f"{len(bugs)} of the catalogue's bugs take effect in these trainings. {idle} of them do no harm that shows in "
        f"the score, and are not counted above; of their {harmless.seeds} seeds {harmless.hit} are warned of, "
        f"{harmless.right} under the right cause.",
    ]
    if mild:
        lines[-1] += " Nor are: " + ", ".join(f"{c.fault} (on {c.env_id})" for c in mild) + "."
    if quiet:
        lines[-1] += (
            " Harm that goes unnoticed: "
            + ", ".join(c.fault.removeprefix("bug: ") + f" ({c.agent.upper()})" for c in quiet)
            + "."
        )
    data: dict[str, Any] = {
        "seeds": "odd" if rest else "even",
        "healthy": len(good),
        "unhealthy": everything.seeds,
        "false_alarms": worst,
        "hit": everything.hit / max(everything.seeds, 1),
        "right": everything.right / max(everything.seeds, 1),
        "tables": "\n".join(lines) + "\n",
        "rows": rows,
    }
    return data, data["tables"]


def across(case: Case, rest: int) -> set[str]:
    """The checks that fire on all seeds of a half together."""
    kept, metrics = load(case)
    half = {name: x[rest::2] for name, x in metrics.items()}
    return {f for f in names(diagnose(half, kept["config"]).findings) if CHECKS[f].shared_by_seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", nargs="?", choices=("train", "judge"), default="judge")
    parser.add_argument("names", nargs="*", help="those whose name begins so")
    parser.add_argument(
        "--even", action="store_true", help="the half of the seeds that thresholds are set on; print only"
    )
    parser.add_argument("--memory", action="store_true", help="ppo_rnn's corpus, and not the three agents'")
    options = parser.parse_args()
    agents = MEMORY if options.memory else THREE
    RUNS.mkdir(parents=True, exist_ok=True)
    cases = [case for case in corpus(agents) if not options.names or case.name.startswith(tuple(options.names))]
    if options.command == "judge":
        if missing := [case.name for case in corpus(agents) if wanted(case) and not case.path.exists()]:
            parser.error(f"{len(missing)} trainings are missing, such as {missing[0]}: the command 'train' makes them")
        data, tables = judge(0 if options.even else 1, agents)
        print(tables)
        if not options.even:
            data.pop("rows")  # of every seed: made again from the trainings in seconds
            found, name = (RESULTS_MEMORY, "memory") if options.memory else (RESULTS, "verdicts")
            found.write_text(json.dumps(data, indent=1) + "\n")
            page.put(PAGE, name, tables)
        return
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            if not wanted(case):
                continue
            with case.path.with_suffix(".lock").open("w") as lock, contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # several processes may run this at once
                if not case.path.exists():
                    start = time.perf_counter()
                    said = train(case, Path(folder))
                    print(f"{case.name}: {said}, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
