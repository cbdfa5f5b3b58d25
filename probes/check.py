"""Training an agent on the ladder, many seeds at once, and judging what it learned.

The agent is known by its contract alone (rlref/README.md). Probes of equal shape train in one program: `vmap` over probe
and seed, seeds sharded over all devices, with the tables and the agent's float settings as batched arguments.
"""

import dataclasses
import itertools
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from probes import solve
from probes.environments import Tables, Tabular, Target, Targets, tables
from probes.ladder import LADDER, Answer, Case, Probe
from rlref.errors import UsageError

# num_envs and num_steps are different primes, and no dimension of an observation or an action above 1 is one of them:
# an axis taken for another does not fit, or shows.
SETTINGS: dict[str, dict[str, Any]] = {
    "A": {
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
        "conv_layers": ((4, 3, 1),),
        "activation": "tanh",
        "normalize_observations": False,
        "scale_rewards": False,
    }
}
NEEDED = ("gamma", "total_timesteps")
WIDTH = 5  # to which vector observations of two-action tables are filled up with zeros
ACTIONS = 2  # to which their actions are filled up with copies of the worst


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an agent's networks say of one probe's states, per seed."""

    value: np.ndarray | None
    """`[S, n]` V; `[S, n, A]` Q; None for an agent without values"""
    policy: np.ndarray
    """`[S, n, A]` probabilities; for a Box `[S, n, D]` the mean, clipped to the Box"""


@dataclasses.dataclass(frozen=True)
class Result:
    """How a probe went."""

    probe: Probe
    kind: str
    cases: Sequence[Case]
    outcome: Outcome
    untrained: Outcome
    passed: np.ndarray
    """`[S]` bool"""
    seeds: range

    @property
    def ok(self) -> bool:
        return bool(self.passed.all())

    @property
    def bound(self) -> float:
        """The failure rate that more than so many failures would contradict, at 95 % (Clopper & Pearson 1934)."""
        from scipy import stats

        failures = int((~self.passed).sum())
        return 1.0 if failures == len(self.passed) else float(stats.beta.ppf(0.95, failures + 1, self.passed.sum()))

    @property
    def worst(self) -> int:
        """The row of the seed that is furthest off."""
        return int(np.argmax([error(self.probe, self.kind, *row) for row in self.rows()]))

    def rows(self) -> Iterable[tuple[Case, Answer]]:
        """Each seed's case, and what its agent answers."""
        value, policy = self.outcome.value, self.outcome.policy
        for i, case in enumerate(self.cases):
            yield case, Answer(None if value is None else value[i], policy[i])


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A probe that the agent cannot be trained on."""

    probe: Probe
    why: str


def kind_of(module: ModuleType) -> str:
    """`A`, `Q` or `C`, by the agent's `value`: a scalar, `[A]`, or None."""
    params = tables(obs=[[0.0]], reward=[[0.0, 0.0, 0.0]], next=[0], terminated=True)
    agent = module.make(module.Config(), Tabular(params), params)
    if agent.value is None:
        return "C"
    state = jax.eval_shape(agent.init, jax.random.key(0))
    shape = jax.eval_shape(agent.value, state, jnp.zeros(1)).shape
    if shape not in ((), (3,)):
        raise UsageError(f"value gives an array of shape {shape}; V is a scalar, Q has one number per action")
    return "A" if shape == () else "Q"


def error(probe: Probe, kind: str, case: Case, answer: Answer, to: Answer | None = None) -> float:
    """How far `answer` is from the truth (or from `to`), in tolerances: right up to 1. Infinite if it is not finite."""
    to = case.truth if to is None else to
    parts = []
    if to.value is not None and kind != "C":
        wanted = to.value
        if kind == "Q":
            assert isinstance(case.params, Tables)
            wanted = solve.action_values(case.params, to.value, probe.gamma)
        parts.append(_largest(answer.value, wanted) / probe.tolerance)
    if to.policy is not None:
        parts.append(_largest(answer.policy, to.policy) / probe.policy_tolerance)
    return max(parts) if parts else math.inf


def _largest(x: np.ndarray | None, wanted: np.ndarray) -> float:
    """The largest difference where `wanted` says something."""
    says = np.isfinite(wanted)
    if x is None or not np.isfinite(x[says]).all():
        return math.inf
    return float(np.abs(x - wanted)[says].max())


def judge(probe: Probe, kind: str, seeds: range, cases: Sequence[Case], outcome: Outcome, untrained: Outcome) -> Result:
    """Compare every seed's outcome with its truth."""
    result = Result(probe, kind, cases, outcome, untrained, np.zeros(len(cases), bool), seeds)
    passed = [error(probe, kind, case, answer) <= 1 for case, answer in result.rows()]
    return dataclasses.replace(result, passed=np.array(passed))


def probes_for(kind: str, only: Sequence[str] = ()) -> list[Probe]:
    """The ladder of this kind of agent, in order; `only` those named. Raises UsageError for a name it has not."""
    from rlref.errors import nearest

    own = {name: p for name, p in LADDER.items() if kind in p.kinds}
    for name in only:
        if name not in own:
            why = "is not for this kind of agent" if name in LADDER else "does not exist"
            raise UsageError(f"the probe {name!r} {why}.{nearest(name, own)} There are: {', '.join(own)}")
    return [p for name, p in own.items() if not only or name in only]


def settings_of(probe: Probe, kind: str, module: ModuleType) -> dict[str, Any]:
    """The settings that the agent's Config has, of those the probe sets. Raises UsageError where it lacks a needed one."""
    fields = {f.name for f in dataclasses.fields(module.Config)}
    wanted = {**SETTINGS[kind], "gamma": probe.gamma, **probe.settings}
    wanted["total_timesteps"] = probe.updates * wanted["num_envs"] * wanted["num_steps"]
    # A setting that only this probe changes is what it is about.
    if lacking := [name for name in (*NEEDED, *probe.settings) if name not in fields]:
        raise UsageError(f"its Config lacks {', '.join(lacking)}, which the probe has to set")
    return {name: value for name, value in wanted.items() if name in fields}


def fill_up(case: Case, gamma: float, n: int) -> Any:
    """A case's parameters in the common shape: unreachable states, zeros in observations, copies of the worst action."""
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
    return isinstance(params, Tables) and params.obs.ndim == 2 and params.reward.shape[1] <= ACTIONS


def groups_of(probes: Sequence[Probe], kind: str, module: ModuleType) -> tuple[list[list[Probe]], list[Skipped]]:
    """Probes that train in one program, in the ladder's order; and those that cannot be set up."""
    traced = {f.name for f in dataclasses.fields(module.Config) if f.metadata.get("pytree_node", True)}
    groups: dict[Any, list[Probe]] = {}
    skipped = []
    for one in probes:
        try:
            settings = settings_of(one, kind, module)
        except UsageError as why:
            skipped.append(Skipped(one, str(why)))
            continue
        params = one.case(0).params
        shapes = "filled up" if fills_up(params) else [np.shape(x) for x in jax.tree.leaves(params)]
        key = repr((shapes, [(k, v) for k, v in settings.items() if k not in traced]))
        groups.setdefault(key, []).append(one)
    return list(groups.values()), skipped


def train_group(module: ModuleType, kind: str, probes: Sequence[Probe], seeds: range) -> list[Result]:
    """Train probes of equal shape and settings, all seeds of all of them in one program."""
    cases = [[one.case(seed) for seed in seeds] for one in probes]
    n = max(len(case.params.obs) for case in itertools.chain(*cases))
    params = [[fill_up(case, one.gamma, n) for case in row] for one, row in zip(probes, cases, strict=True)]
    # Every leaf [probes, seeds, ...].
    stacked = jax.tree.map(lambda *x: np.stack(x), *[jax.tree.map(lambda *x: np.stack(x), *row) for row in params])
    default = params[0][0]
    env: Any = Tabular(default) if isinstance(default, Tables) else Target(default)
    settings = [settings_of(one, kind, module) for one in probes]
    configs = jax.tree.map(lambda *x: np.float32(x), *[module.Config(**s) for s in settings])

    def one_seed(config: Any, params: Any, key: jax.Array) -> Any:
        return module.make(config, env, params).init(key)

    def answers(agent: Any, state: Any, params: Any) -> tuple[Any, Any]:
        policy = jax.vmap(lambda obs: agent.policy(state, obs))(params.obs)
        if isinstance(policy, tuple):
            policy = jnp.clip(policy[0], -1, 1)
        return (None if agent.value is None else jax.vmap(lambda obs: agent.value(state, obs))(params.obs)), policy

    def learn(config: Any, params: Any, state: Any) -> Any:
        agent = module.make(config, env, params)
        steps = jnp.arange(agent.num_updates)
        trained, _ = jax.lax.scan(lambda s, step: (agent.update(s, step)[0], None), state, steps)
        return answers(agent, state, params), answers(agent, trained, params)

    # As many devices as there are, with seeds filled up by repeating the last.
    devices = jax.devices()[: len(seeds)]
    mesh = jax.make_mesh((len(devices),), ("seed",), axis_types=(AxisType.Auto,), devices=devices)
    by_seed, everywhere = NamedSharding(mesh, P(None, "seed")), NamedSharding(mesh, P())
    padded = math.ceil(len(seeds) / len(devices)) * len(devices)
    rows = np.minimum(np.arange(padded), len(seeds) - 1)
    stacked = jax.tree.map(lambda x: x[:, rows], stacked)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds.start + rows))

    def program(configs: Any, params: Any, keys: jax.Array) -> Any:
        state = jax.vmap(jax.vmap(one_seed, (None, 0, 0)), (0, 0, None))(configs, params, keys)
        # The initialisation's QR is not sharded; without this the training after it would not be either.
        state = jax.lax.with_sharding_constraint(state, by_seed)
        return jax.vmap(jax.vmap(learn, (None, 0, 0)), (0, 0, 0))(configs, params, state)

    shardings = (everywhere, by_seed, NamedSharding(mesh, P("seed")))
    before, after = jax.device_get(jax.jit(program, in_shardings=shardings)(configs, stacked, keys))

    def outcome(answers: Any, row: int, params: Any) -> Outcome:
        value, policy = (None if x is None else x[row, : len(seeds), : len(params.obs)] for x in answers)
        if isinstance(params, Tables):
            actions = params.reward.shape[1]
            policy = policy[..., :actions]
            value = value[..., :actions] if kind == "Q" else value
        return Outcome(value, policy)

    return [
        judge(one, kind, seeds, row, outcome(after, i, row[0].params), outcome(before, i, row[0].params))
        for i, (one, row) in enumerate(zip(probes, cases, strict=True))
    ]
