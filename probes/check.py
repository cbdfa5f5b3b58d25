"""Training an agent on the ladder, many seeds at once, and judging what it learned.

The agent is known by its contract alone (rlref/contract.py). Probes of equal shape train in one program: `vmap` over
probe and seed, seeds sharded over all devices, with the tables and the agent's float settings as batched arguments.
"""

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from probes import lacking, one_by_one, solve
from probes.changes import Changes, changes, module_of, reached, references
from probes.environments import Tables, Tabular, Target, tables
from probes.ladder import LADDER, Answer, Case, Probe
from probes.memory import MEMORY, for_memory, is_markov
from probes.oracles import MEMORY_ORACLES, ORACLES, CannotAskError, Oracle, missing, settings_in
from probes.oracles.base import LIKENESS, used
from probes.undo import Undo, smallest
from probes.ways import Ways, answered, has_memory, of_three_actions, ways
from rlref.contract import AGENTS, FIELDS, GRADIENT, load_agent, remembers, traced_names
from rlref.errors import UsageError, errors_with_line, first_line, in_a_line, line_of, nearest
from rlref.runs import compiling

# `updates` stands for total_timesteps. num_envs and the steps of a rollout or cycle are different primes, and no
# dimension of an observation or an action above 1 is one of them: whoever takes one axis for another gets an error of
# shapes, or a result that is visibly wrong.
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "updates": 100,
        "num_envs": 7,
        "num_steps": 11,
        "num_minibatches": 7,
        "update_epochs": 4,
        "learning_rate": 5e-3,
        "anneal_lr": True,
        "gae_lambda": 0.95,
        "clip_vloss": False,
        "norm_adv": True,
        "ent_coef": 0.0,
        "max_grad_norm": 0.5,
        "hidden_sizes": (16, 16),
        "conv_layers": ((8, 3, 1),),
        "activation": "tanh",
        "normalize_observations": False,
        "scale_rewards": False,
        "memory_size": 16,
        "sequence_length": None,
    },
    "dqn": {
        "updates": 100,
        "num_envs": 7,
        "train_frequency": 77,
        "cycles_per_update": 5,
        "learning_starts": 770,
        "buffer_size": 15400,
        "buffer_dtype": "same",
        "batch_size": 31,
        "learning_rate": 1.5e-2,
        "anneal_lr": True,
        "n_step": 1,
        "target": "double",
        "target_network_frequency": 385,
        "tau": 1.0,
        "loss": "squared",
        "start_e": 1.0,
        "end_e": 0.2,
        "exploration_fraction": 0.5,
        "hidden_sizes": (16, 16),
        "conv_layers": ((8, 3, 1),),
        "activation": "tanh",
    },
    "cem": {
        "updates": 30,
        "population_size": 131,
        "elite_fraction": 0.15,
        "num_rollouts": 11,
        "num_eval_rollouts": 7,
        "max_episode_steps": None,
        "init_variance": 1.0,
        "extra_variance": 0.25,
        "extra_variance_fraction": 0.5,
        "smoothing": 0.0,
        "hidden_sizes": (),
        "activation": "tanh",
        "normalize_observations": False,
    },
}
WIDTH = 5  # to which vector observations of two-action tables are filled up with zeros
BISECT_SECONDS = 60.0
ASTRAY = 1.5  # times as far from the truth as it began
FEW_FAIL = 0.05  # of the seeds of a rung that is given time
FEW = 8  # seeds that mostly show what is wrong, sooner than all do
LARGER_POPULATION = 1031  # a prime, as the usual one
ACTIONS = 2  # to which their actions are filled up with copies of the worst


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an agent's networks say of one probe's states, per seed."""

    value: np.ndarray | None
    """`[S, n]` V; `[S, n, A]` Q; None for an agent without values"""
    policy: np.ndarray
    """`[S, n, A]` probabilities; for a Box `[S, n, D]` the mean, clipped to the Box"""


@dataclasses.dataclass(frozen=True)
class RungResult:
    """How a probe went."""

    probe: Probe
    kind: str
    cases: Sequence[Case]
    outcome: Outcome
    untrained: Outcome
    passed: np.ndarray
    """`[S]` bool"""
    seeds: range
    slow: bool = False
    """whether it was trained for longer, as it had not arrived after the probe's own time"""
    meant: str = ""
    """why the file says that it is meant to be slower, or to fail where that is likeness"""

    @property
    def name(self) -> str:
        return self.probe.name

    @property
    def ok(self) -> bool:
        """Whether every seed passes; trained for longer, all but a few, as a method may end in a local optimum."""
        return self.failures <= (FEW_FAIL * len(self.passed) if self.slow else 0)

    @property
    def failures(self) -> int:
        return int((~self.passed).sum())

    @property
    def is_likeness(self) -> bool:
        """Whether no more is said than that it does otherwise than rlref's own."""
        return self.ok or self.probe.holds == LIKENESS

    @property
    def bound(self) -> float:
        """The failure rate that more than so many failures would contradict, at 95 % (Clopper & Pearson 1934)."""
        from scipy import stats

        failures, passed = self.failures, int(self.passed.sum())
        return float(stats.beta.ppf(0.95, failures + 1, passed)) if passed else 1.0

    @property
    def worst(self) -> int:
        """The row of the seed that is furthest off."""
        return int(np.argmax(self.errors))

    @property
    def errors(self) -> np.ndarray:
        """`[S]` how far each seed is from the truth, in tolerances."""
        return np.array([error(self.probe, self.kind, *row) for row in self.rows()])

    def rows(self) -> Iterable[tuple[Case, Answer]]:
        """Each seed's case, and what its agent answers."""
        value, policy = self.outcome.value, self.outcome.policy
        for i, case in enumerate(self.cases):
            yield case, Answer(None if value is None else value[i], policy[i])


@dataclasses.dataclass(frozen=True)
class OracleResult:
    """How an oracle went: `fault` is '' if it found none, and None if it could not be asked, for the reason `why`."""

    oracle: Oracle
    fault: str | None
    why: str = ""
    meant: str = ""
    """why the file says that this likeness is not meant to hold"""

    @property
    def name(self) -> str:
        return self.oracle.name

    @property
    def is_likeness(self) -> bool:
        return self.oracle.holds == LIKENESS


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A probe that the agent cannot be trained on."""

    probe: Probe
    why: str

    @property
    def name(self) -> str:
        return self.probe.name


@dataclasses.dataclass(frozen=True)
class Report:
    """What the ladder found, in its order."""

    agent: str
    kind: str
    oracles: list[OracleResult]
    rungs: list[RungResult | Skipped]
    whole: bool = False
    """whether all was asked for, and not some checks by name"""
    changes: Changes | None = None
    """what the file has changed; None if it is rlref's own, or not a copy of one"""
    undo: Undo | None = None
    """without which of its changes the first failure passes"""
    notes: tuple[str, ...] = ()
    """what is to be said besides: of the file's PROBE_MEANT, and of what will hang elsewhere"""
    unseen: tuple[str, ...] = ()
    """functions that are new or changed, that `make` uses and no check has run; without what is meant"""
    memory: bool = False
    """whether the agent has one"""

    @property
    def original(self) -> str:
        """Which of rlref's agents is of its kind, with a memory or without."""
        return "ppo_rnn" if self.memory and self.kind == "ppo" else self.kind

    @property
    def failures(self) -> list[OracleResult | RungResult]:
        """What failed, the first first; without what is meant.

        A rung that took more time is among them where nothing else has been found that could explain it.
        """
        explained = any(x.fault for x in self.oracles)
        rungs = [rung for rung in self.rungs if isinstance(rung, RungResult) and not rung.meant]
        found: list[OracleResult | RungResult] = [x for x in self.oracles if x.fault and not x.meant]
        return found + [rung for rung in rungs if not rung.ok or (rung.slow and not explained)]

    @property
    def wrong(self) -> list[OracleResult | RungResult]:
        """Truths and definitions that fail."""
        return [x for x in self.failures if not x.is_likeness]

    @property
    def differing(self) -> list[OracleResult | RungResult]:
        """Likenesses that fail, and are not declared."""
        return [x for x in self.failures if x.is_likeness]

    @property
    def ok(self) -> bool:
        return not self.failures


def kind_of(module: ModuleType) -> str:
    """ "ppo", "dqn" or "cem", by the agent's `value`: a scalar, `[A]`, or None; see `rlref.contract.NAMES`."""
    agent = of_three_actions(module)
    if not hasattr(agent, "init"):
        raise UsageError(f"make gives {type(agent).__name__}; it must give an Agent({', '.join(FIELDS)})")
    state = jax.eval_shape(agent.init, jax.random.key(0))
    if with_memory := remembers(agent):
        seen: Any = (agent.memory0, jnp.zeros(1), jnp.int32(0), jnp.float32(0), jnp.bool(True))
        policy, _ = jax.eval_shape(agent.policy, state, *seen)
    else:
        seen = (jnp.zeros(1),)
        policy = jax.eval_shape(agent.policy, state, *seen)
    if getattr(policy, "shape", None) != (3,):
        raise UsageError(f"policy gives {policy} for three actions; it must be their probabilities, an array [3]")
    if agent.value is None:
        return "cem"
    value: Any = jax.eval_shape(agent.value, state, *seen)
    shape = getattr(value[0] if with_memory else value, "shape", None)
    if shape not in ((), (3,)):
        raise UsageError(f"value gives an array of shape {shape}; V is a scalar, Q has one number per action")
    return "ppo" if shape == () else "dqn"


def error(probe: Probe, kind: str, case: Case, answer: Answer, to: Answer | None = None) -> float:
    """How far `answer` is from the truth (or from `to`), in tolerances: right up to 1. Infinite if it is not finite."""
    to = case.truth if to is None else to
    parts = []
    wanted = probe.values(kind, case, to)
    if wanted is not None:
        parts.append(_largest(answer.value, wanted) / probe.tolerance)
    # A greedy policy follows from Q: of a wrong Q that says nothing new, and where Q is flat it is arbitrary.
    if to.policy is not None and (kind != "dqn" or wanted is None or to is case.truth):
        parts.append(_largest(answer.policy, to.policy) / probe.policy_tolerance)
    return max(parts) if parts else math.inf


def _largest(x: np.ndarray | None, wanted: np.ndarray) -> float:
    """The largest difference where `wanted` says something."""
    says = np.isfinite(wanted)
    if x is None or not np.isfinite(x[says]).all():
        return math.inf
    return float(np.abs(x - wanted)[says].max())


def judge(
    probe: Probe,
    kind: str,
    seeds: range,
    cases: Sequence[Case],
    outcome: Outcome,
    untrained: Outcome,
    within: float = 1.0,
) -> RungResult:
    """Compare every seed's outcome with its truth: it passes within so many tolerances."""
    result = RungResult(probe, kind, cases, outcome, untrained, np.zeros(len(cases), bool), seeds)
    return dataclasses.replace(result, passed=result.errors <= within)


def settings_of(probe: Probe, kind: str, module: ModuleType) -> dict[str, Any]:
    """Those settings of the probe that the agent's Config has. Raises UsageError where it lacks what has to be set."""
    fields = settings_in(module)
    wanted = {**SETTINGS[kind], "gamma": probe.gamma, **probe.settings.get(kind, {})}
    wanted["updates"] = updates_of(probe, kind, fields)
    if kind == "cem":
        wanted["num_generations"] = wanted["updates"]
    else:
        wanted["total_timesteps"] = math.prod(wanted[name] for name in ("updates", *lacking.BATCH[kind]))
    if why := lacking.why_not(probe, kind, fields, module, SETTINGS[kind].get("learning_rate", 0)):
        raise UsageError(why)
    found = {name: value for name, value in wanted.items() if name in fields}
    return lacking.with_length(found, probe, kind, module, fields, wanted["updates"])


def updates_of(probe: Probe, kind: str, fields: set[str]) -> int:
    """How many updates an agent with these settings is trained on a probe."""
    slow = kind in GRADIENT and "learning_rate" not in fields
    return int({**SETTINGS[kind], **probe.settings.get(kind, {})}["updates"]) * (lacking.PATIENCE if slow else 1)


def fill_up(case: Case, gamma: float, n: int) -> Any:
    """A case's parameters in the common shape: with unreachable states, zeros, and copies of the worst action."""
    params = case.params
    if not fills_up(params):
        return params
    value = np.zeros(len(params.obs)) if case.truth.value is None else case.truth.value
    worst = solve.action_values(params, value, gamma).argmin(axis=1)[:, None]
    missing = ACTIONS - params.reward.shape[1]

    def fill(x: np.ndarray) -> np.ndarray:
        x = np.concatenate([x, *[np.take_along_axis(x, worst, axis=1)] * missing], axis=1)
        return np.pad(x, ((0, n - len(x)), (0, 0)))

    columns = {name: fill(getattr(params, name)) for name in ("reward", "next", "terminated", "truncated", "after")}
    obs = np.pad(params.obs, ((0, n - len(params.obs)), (0, WIDTH - params.obs.shape[1])))
    return dataclasses.replace(params, obs=obs, start=np.pad(params.start, (0, n - len(params.start))), **columns)


def fills_up(params: Any) -> bool:
    """Whether a probe is one of those brought to a common shape: vectors as observations, at most two actions."""
    fits = isinstance(params, Tables) and params.obs.ndim == 2 and params.reward.shape[1] <= ACTIONS
    return fits and not params.action_mask


def groups_of(probes: Sequence[Probe], kind: str, module: ModuleType) -> tuple[list[list[Probe]], list[Skipped]]:
    """Probes that train in one program, in the ladder's order; and those that cannot be set up."""
    traced = traced_names(module.Config)
    groups: dict[Any, list[Probe]] = {}
    skipped = []
    for one in probes:
        try:
            settings = settings_of(one, kind, module)
        except UsageError as why:
            skipped.append(Skipped(one, str(why)))
            continue
        params = one.case(0, kind).params
        shapes = "filled up" if fills_up(params) else [np.shape(x) for x in jax.tree.leaves(params)]
        key = repr(
            (
                shapes,
                updates_of(one, kind, settings_in(module)),
                [(k, v) for k, v in settings.items() if k not in traced],
            )
        )
        groups.setdefault(key, []).append(one)
    return list(groups.values()), skipped


def env_of(params: Any) -> Any:
    """The environment whose parameters these are."""
    return Tabular(params) if isinstance(params, Tables) else Target(params)


def refusal(module: ModuleType, kind: str, one: Probe) -> str:
    """Why the agent's `make` does not take a probe's spaces or settings; '' if it does."""
    params = one.case(0, kind).params
    try:
        module.make(module.Config(**settings_of(one, kind, module)), env_of(params), params)
    except ValueError as error:
        return str(error)
    except Exception:  # training says what and where
        return ""
    return ""


def train_group(
    module: ModuleType, kind: str, probes: Sequence[Probe], seeds: range, within: float = 1.0
) -> list[RungResult]:
    """Train probes of equal shape and settings, all seeds of all of them in one program."""
    cases = [[one.case(seed, kind) for seed in seeds] for one in probes]
    n = max(len(case.params.obs) for case in itertools.chain(*cases))
    params = [[fill_up(case, one.gamma, n) for case in row] for one, row in zip(probes, cases, strict=True)]
    longest = 0
    if with_memory := has_memory(module):
        longest = max(ways(case.params).states.shape[1] for case in itertools.chain(*cases))
    given = [[(x, ways(x, longest) if with_memory else None) for x in row] for row in params]
    # Every leaf [probes, seeds, ...].
    stacked = jax.tree.map(lambda *x: np.stack(x), *[jax.tree.map(lambda *x: np.stack(x), *row) for row in given])
    env, fields = env_of(params[0][0]), settings_in(module)
    settings = [settings_of(one, kind, module) for one in probes]
    configs = jax.tree.map(lambda *x: np.array(x, np.float32), *[module.Config(**s) for s in settings])

    def one_seed(config: Any, given: Any, key: jax.Array) -> Any:
        return module.make(config, env, given[0]).init(key)

    def answers(agent: Any, state: Any, params: Any, led: Ways | None) -> tuple[Any, Any]:
        value, policy = answered(agent, state, env, params, led)
        return value, jnp.clip(policy[0], -1, 1) if isinstance(policy, tuple) else policy

    def learn(config: Any, given: Any, state: Any) -> Any:
        params, led = given
        agent = module.make(config, env, params)
        steps = jnp.asarray(lacking.steps_of(agent, kind, fields, updates_of(probes[0], kind, fields)))
        trained, _ = jax.lax.scan(lambda s, step: (agent.update(s, step)[0], None), state, steps)
        return answers(agent, state, params, led), answers(agent, trained, params, led)

    mesh, padded = compiling.mesh_for(len(seeds))
    rows = compiling.padded_rows(len(seeds), padded)
    stacked = jax.tree.map(lambda x: x[:, rows], stacked)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds.start + rows))

    def program(configs: Any, params: Any, keys: jax.Array) -> Any:
        state = jax.vmap(jax.vmap(one_seed, (None, 0, 0)), (0, 0, None))(configs, params, keys)
        return jax.vmap(jax.vmap(learn, (None, 0, 0)), (0, 0, 0))(configs, params, state)

    program = compiling.on_each_device(program, mesh, (P(), P(None, "seed"), P("seed")), P(None, "seed"))
    lowered = jax.jit(program).lower(configs, stacked, keys)
    one_by_one.look(lowered)
    compiled = lowered.compile(compiling.options(compiling.LOOP))
    before, after = jax.device_get(compiled(configs, stacked, keys))

    def outcome(answers: Any, row: int, params: Any) -> Outcome:
        value: Any
        policy: Any
        value, policy = (None if x is None else x[row, : len(seeds), : len(params.obs)] for x in answers)
        own = slice(params.reward.shape[1] if isinstance(params, Tables) else None)  # without what filled up
        return Outcome(value[..., own] if kind == "dqn" else value, policy[..., own])

    return [
        judge(one, kind, seeds, row, outcome(after, i, row[0].params), outcome(before, i, row[0].params), within)
        for i, (one, row) in enumerate(zip(probes, cases, strict=True))
    ]


def given_time(
    module: ModuleType, kind: str, late: Sequence[RungResult], tell: Callable[[str], None] = lambda _: None
) -> list[RungResult]:
    """The same probes, trained for longer and in smaller steps, and judged by twice the tolerance.

    How fast an agent learns, and how exactly, is a matter of its method; and named wrong answers are at least four
    tolerances away (tests/probes/test_probes.py), so that what passes is nearer to the truth than to any of them. What
    is nearer by then but not there is trained once more in steps of the first size: it had too far to go, as weights of
    many bins of a value's distribution have.
    """
    fields = settings_in(module)
    if kind in GRADIENT and "learning_rate" not in fields:  # it was given more from the beginning
        return []
    found = {x.name: x for x in trained_longer(module, kind, late, 0.25, tell)}
    still = [x for x in late if x.name in found and not found[x.name].ok and is_nearer(found[x.name], x)]
    if still and (kind == "dqn" or "update_epochs" in fields):  # others were trained in such steps
        more = trained_longer(module, kind, still, 1.0, tell)
        found |= {x.name: x for x in more if x.failures < found[x.name].failures}
    return [*found.values()]


def trained_longer(
    module: ModuleType, kind: str, late: Sequence[RungResult], share: float, tell: Callable[[str], None]
) -> list[RungResult]:
    """Probes trained for longer, at this share of their learning rate."""
    by_name, fields = {x.name: x.probe for x in late}, settings_in(module)
    patient = []
    for one in by_name.values():
        own = {**SETTINGS[kind], **one.settings.get(kind, {})}
        if kind == "cem":
            more = {"updates": 2 * own["updates"]}
            more |= {"population_size": LARGER_POPULATION} if "population_size" in fields else {}
        elif kind == "ppo" and "update_epochs" not in fields:  # a gradient step or so where rlref's makes 28
            more = {"updates": 20 * own["updates"]}
        else:
            more = {"updates": 8 * own["updates"], "learning_rate": own["learning_rate"] * share}
        settings = {**one.settings, kind: {**one.settings.get(kind, {}), **more}}
        patient.append(dataclasses.replace(one, settings=settings))
    groups, _ = groups_of(patient, kind, module)
    trained = []
    for group in groups:
        tell(f"training {', '.join(one.name for one in group)} for longer")
        trained += train_group(module, kind, group, late[0].seeds, within=2.0)
    return [dataclasses.replace(x, probe=by_name[x.name], slow=True) for x in trained]


def is_nearer(after: RungResult, before: RungResult) -> bool:
    """Whether three seeds in four are nearer to the truth than they were."""
    return bool(np.mean(after.errors < before.errors) >= 0.75)


def astray(late: RungResult) -> bool:
    """Whether a rung that is a truth ended far from it, and further than it began: more time would not bring it there.

    Named wrong answers are at least four tolerances away (tests/probes/test_probes.py).
    """
    if late.is_likeness:
        return False
    began = dataclasses.replace(late, outcome=late.untrained).errors
    return bool(np.mean(late.errors > np.maximum(ASTRAY * began, 4)) >= 0.75)


def is_wrong(asked: OracleResult) -> bool:
    """Whether a truth or a definition fails."""
    return bool(asked.fault) and not asked.is_likeness


@one_by_one.noted
def run(
    agent: str | ModuleType,
    *,
    only: Sequence[str] = (),
    num_seeds: int = 64,
    seed: int = 0,
    fail_fast: bool = False,
    bisect: bool = True,
    watch: Callable[[str, list[OracleResult], list[RungResult | Skipped]], None] = lambda *_: None,
) -> Report:
    """Ask the oracles, then train the ladder, `num_seeds` seeds of every rung.

    Args:
      agent: a name, the path of a file that keeps the agent contract, or such a module.
      only: names of oracles and rungs; without, all.
      num_seeds: seeds per rung.
      seed: the first seed's id; it draws signs, best arms and the agent's key.
      fail_fast: stop after the first truth or definition that fails, or the first program in which such a rung fails;
        of each program a few seeds are trained before all are.
      bisect: whether to look for the smallest change of the file without which the first failure passes.
      watch: told what is being done, with what is known so far.

    Raises UsageError, in one line, for a name that does not exist, and for a file without the contract or that raises.
    """
    if seed + num_seeds > 2**31:
        raise UsageError(f"seed is {seed}; seeds are numbers below 2**31")
    module = load_agent(agent)
    name = agent if isinstance(agent, str) else module.__name__
    with errors_with_line(name, module.__file__, named=False, anywhere=True):
        kind, with_memory = kind_of(module), has_memory(module)
    seeds = range(seed, seed + num_seeds)
    own = checks_for(kind, with_memory)
    for wanted in only:
        if wanted not in own:
            exists = wanted in LADDER | ORACLES | MEMORY_ORACLES | MEMORY
            why = "is not for this kind of agent" if exists else "does not exist"
            raise UsageError(f"the check {wanted!r} {why}.{nearest(wanted, own)} There are: {', '.join(own)}")
    chosen = [x for n, x in own.items() if (n in only if only else with_memory or n not in MEMORY)]
    changed = changes_of(agent, module)
    called = calls_of(module, changed)

    stopped, asked = False, list[OracleResult]()
    results: dict[str, RungResult | Skipped] = {}
    likely, others = likely_first([x for x in chosen if isinstance(x, Oracle)], module, changed)
    waiting, answered = [*likely, *others], set[str]()
    expected = {x.name for x in others if not missing(x, module)}
    for oracle in waiting:
        expected.discard(oracle.name)
        if oracle.instead_of and answered | expected >= {*oracle.instead_of}:
            if not answered >= {*oracle.instead_of}:  # one of these is still to be asked, and may not answer
                waiting.append(oracle)
            continue
        watch(f"asking {oracle.name}", asked, [])
        with errors_with_line(name, module.__file__, named=False, anywhere=True):
            asked.append(ask(oracle, module))
        if asked[-1].fault is not None:
            answered.add(oracle.name)
        stopped = fail_fast and is_wrong(asked[-1])
        if stopped:
            break
    asked.sort(key=lambda x: [*own].index(x.name))
    probes = [] if stopped else [x for x in chosen if isinstance(x, Probe)]
    groups, skipped = groups_of(probes, kind, module) if probes else ([], [])
    results |= {skip.probe.name: skip for skip in skipped}

    def tell(doing: str) -> None:
        watch(doing, asked, in_order(results))

    for group in groups:
        tell(f"training {', '.join(one.name for one in group)}")
        trained: list[Any]  # of RungResult or Skipped
        if why := refusal(module, kind, group[0]):
            trained = [Skipped(one, why) for one in group]
        else:
            with errors_with_line(name, module.__file__, named=False, anywhere=True):
                for some in [seeds[:FEW], seeds] if fail_fast and num_seeds > FEW else [seeds]:
                    trained = train_group(module, kind, group, some)
                    late = [x for x in trained if not x.ok]
                    if late and not any(map(is_wrong, asked)) and not any(map(astray, late)):
                        found = {x.name: x for x in given_time(module, kind, late, tell)}
                        trained = [found.get(x.name, x) for x in trained]
                    failed = [x for x in trained if not x.is_likeness]
                    # A few of the first seeds may be the few of all that a rung may fail which is given time.
                    if stopped := fail_fast and any(not x.slow or x.failures > FEW_FAIL * num_seeds for x in failed):
                        break
        results |= {one.probe.name: one for one in trained}
        if stopped:
            break
    watch("", asked, in_order(results))
    unseen = [x for x, has_run in called.items() if not has_run]
    answers, notes = as_meant(module, [*asked, *in_order(results)], own, unseen)
    of_oracles = [x for x in answers if isinstance(x, OracleResult)]
    rungs = [x for x in answers if not isinstance(x, OracleResult)]
    unseen = [x for x in unseen if x not in getattr(module, "PROBE_MEANT", {})]
    report = Report(name, kind, of_oracles, rungs, not only, changed, None, notes, tuple(unseen), with_memory)
    if bisect and report.failures and report.changes and not report.changes.too_different:
        undo = undo_of(report, module, seeds, tell)
        report = dataclasses.replace(report, undo=undo)
    return report


def checks_for(kind: str, with_memory: bool) -> dict[str, Oracle | Probe]:
    """What an agent can be asked, by name, in order; of one without a memory the rungs of `MEMORY` by name alone."""
    oracles, ladder = ORACLES, LADDER
    if with_memory:
        # Those of functions first, for they are nearest to a fault; none that not even rlref's own can be asked.
        own_file = load_agent("ppo_rnn")
        asked_of = {n: x for n, x in ORACLES.items() if not missing(x, own_file)}
        oracles = {n: x for n, x in asked_of.items() if x.needs} | MEMORY_ORACLES | asked_of
        ladder = {n: for_memory(x) for n, x in LADDER.items() if is_markov(x)}
    return {n: x for n, x in (oracles | ladder | MEMORY).items() if kind in x.kinds}


def as_meant(
    module: ModuleType,
    results: list[OracleResult | RungResult | Skipped],
    own: dict[str, Oracle | Probe],
    unseen: Sequence[str],
) -> tuple[list[OracleResult | RungResult | Skipped], tuple[str, ...]]:
    """The results with what the file's PROBE_MEANT says of them; and what is to be said of that.

    Raises UsageError if it is no dictionary of reasons.
    """
    meant = getattr(module, "PROBE_MEANT", {})
    if not isinstance(meant, dict) or not all(isinstance(x, str) and x for pair in meant.items() for x in pair):
        raise UsageError('PROBE_MEANT must be a dictionary of reasons, such as {"gradient_steps": "KL penalty"}')
    answered = {x.name: x for x in results if not isinstance(x, Skipped)}
    notes, excused = [], {}
    for name, why in meant.items():
        found, asks = answered.get(name), own.get(name)
        failed = isinstance(found, RungResult) and (found.slow or not found.ok)
        failed |= isinstance(found, OracleResult) and bool(found.fault)
        if name in unseen:
            continue
        if asks is None:
            notes.append(f"PROBE_MEANT has {name!r}, which is no check.{nearest(name, own)}")
        elif not found.is_likeness if found else isinstance(asks, Oracle) and asks.holds != LIKENESS:
            notes.append(f"PROBE_MEANT has {name!r}, which holds for any right agent: it excuses nothing.")
        elif found and not failed and not (isinstance(found, OracleResult) and found.fault is None):
            notes.append(f"PROBE_MEANT has {name!r}, which passes: it is not needed.")
        else:
            excused[name] = why
    declared = [x if isinstance(x, Skipped) else dataclasses.replace(x, meant=excused.get(x.name, "")) for x in results]
    return declared, tuple(notes)


def changes_of(agent: str | ModuleType, module: ModuleType) -> Changes | None:
    """What an agent's file has changed; None if it is one of rlref's own."""
    if isinstance(agent, ModuleType) or agent in AGENTS or module.__file__ is None:
        return None
    found = changes(Path(module.__file__).read_text("utf-8-sig"))
    return found if found.hunks else None


def likely_first(
    oracles: list[Oracle], module: ModuleType, changed: Changes | None
) -> tuple[list[Oracle], list[Oracle]]:
    """The oracles, in their order, and those to be asked after them: of functions that no change can have reached.

    These are the functions that do not refer to what was changed, directly or through others. A change of `make`, or of
    what it makes tasks of, can reach all of them.
    """
    if changed is None or changed.too_different:
        return oracles, []
    names, uses = {x.name for x in changed.changed}, references(changed.text)
    made = {x for x in uses.get("make", ()) if isinstance(getattr(module, x, None), type)} - {"Agent"}
    if not names <= {*uses} or names & ({"make"} | reached(uses, made)):
        return oracles, []
    others = [x for x in oracles if x.needs and not names & reached(uses, {*x.needs, *x.also})]
    return [x for x in oracles if x not in others], others


def calls_of(module: ModuleType, changed: Changes | None) -> dict[str, bool]:
    """Name -> whether it has been called, from now on, of the functions that were changed and that `make` uses."""
    if changed is None or changed.too_different:
        return {}
    functions = {x.name: getattr(module, x.name, None) for x in changed.changed if x.name in used(module)}
    called = {name: False for name, f in functions.items() if isinstance(f, FunctionType) and name != "make"}

    def noting(name: str, f: Any) -> Any:
        @functools.wraps(f)
        def noted(*args: Any, **settings: Any) -> Any:
            called[name] = True
            return f(*args, **settings)

        return noted

    for name in called:
        setattr(module, name, noting(name, functions[name]))
    return called


def undo_of(report: Report, module: ModuleType, seeds: range, watch: Callable[[str], None]) -> Undo | None:
    """The smallest change of the file without which what the verdict is about passes; None if none is found in time."""
    failure = report.wrong[0] if report.wrong else report.differing[0]
    assert report.changes is not None
    assert module.__file__ is not None
    path, tried = module.__file__, itertools.count(1)

    def passes(text: str, failure: OracleResult | RungResult = failure, seeds: range = seeds) -> bool:
        watch(f"undoing changes, {failure.name} alone: try {next(tried)}")
        try:
            other = module_of(text, path)
            if isinstance(failure, OracleResult):
                return ask(failure.oracle, other).fault == ""
            trained = train_group(other, report.kind, [failure.probe], seeds)
            if trained[0].ok or failure.ok:  # what took time has to pass without
                return trained[0].ok
            return failure.slow and given_time(other, report.kind, trained)[0].ok
        except Exception:  # half of a change may not even compile
            return False
        finally:
            sys.modules[module.__name__] = module

    near = next((x for x in report.failures if isinstance(x, OracleResult)), None)
    suspects = near.oracle.needs if near else ()
    if isinstance(failure, OracleResult):
        return smallest(report.changes, passes, suspects, BISECT_SECONDS)
    # A training takes long: a few seeds are enough to search with, and an oracle that fails says where to begin.
    some = functools.partial(passes, seeds=worst_seeds(failure))
    quick = functools.partial(passes, failure=near) if near else None
    undo = smallest(report.changes, some, suspects, BISECT_SECONDS, quick)
    return undo if undo and passes(report.changes.undone(undo.hunks)) else None


def worst_seeds(rung: RungResult) -> range:
    """FEW seeds side by side, of which as many fail as of any."""
    failed = np.convolve(~rung.passed, np.ones(FEW), "valid") if len(rung.passed) > FEW else np.zeros(1)
    first = int(np.argmax(failed))
    return rung.seeds[first : first + FEW]


def ask(oracle: Oracle, module: ModuleType) -> OracleResult:
    """Ask one oracle. What an update raises is passed on; a function alone is at fault if the whole does not run."""
    if why := missing(oracle, module):
        return OracleResult(oracle, None, why)
    is_likeness = oracle.holds == LIKENESS
    try:
        oracle.check(module)
    except CannotAskError as reason:
        return OracleResult(oracle, None, str(reason))
    except AssertionError as found:
        fault = first_line(found) or "an assertion fails"
        return OracleResult(oracle, fault.replace(", and should be ", ", in rlref's ") if is_likeness else fault)
    except Exception as error:  # the user's own code: anything can come
        where = line_of(error, module.__file__)
        alone = oracle.needs and "update" not in oracle.needs
        # A field under another name, or a likeness that meets another shape.
        if not alone and (where is not None or not (isinstance(error, AttributeError) or is_likeness)):
            raise
        said = first_line(error) if where is None else f"line {where}: {in_a_line(error)}"
        # Within an agent that runs it is right, and takes other things than the oracle gives it.
        return OracleResult(oracle, None, said) if where is None or runs(module) else OracleResult(oracle, said)
    return OracleResult(oracle, "")


def runs(module: ModuleType) -> bool:
    """Whether an update of the agent can be traced, at its own settings."""
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0]], next=[0])
    try:
        agent = module.make(module.Config(), Tabular(params), params)
        jax.eval_shape(agent.update, jax.eval_shape(agent.init, jax.random.key(0)), jnp.int32(0))
    except Exception:  # the user's own code: anything can come
        return False
    return True


def in_order(results: dict[str, RungResult | Skipped]) -> list[RungResult | Skipped]:
    """Results in the ladder's order: programs end in another."""
    return [results[name] for name in (*LADDER, *MEMORY) if name in results]
