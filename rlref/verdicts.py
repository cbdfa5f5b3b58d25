"""Verdicts: what a run's metrics mean, in words. Health checks from the talks and papers in which they stand.

    rlref.load("runs/mine").diagnose().findings           or: rlref diagnose runs/mine

Each check looks at one quantity per seed and update, `[S, U]`, and at a limit; it fires where the quantity is beyond
the limit in most updates of a window. NaN means "undefined", and never fires. A finding that explains others takes them
under it, so that a sick run gets one leading sentence. `scripts/calibrate_verdicts.py` measures how far the checks can
be believed: rlref/README.md has the tables. Where a check's source is "rlref", its threshold comes from there.
`python -m rlref.verdicts` prints all checks.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlref.errors import UsageError
from rlref.findings import SEVERITIES, Finding
from rlref.runs import Run, last, read_json

PRECISION = "jax_default_matmul_precision"
PPO, DQN, CEM = ("ppo",), ("dqn",), ("cem",)
GRADIENT, ALL = (*PPO, *DQN), (*PPO, *DQN, *CEM)


class UnknownError(Exception):
    """A metric or a setting that a check needs and this run does not have."""


class Look(NamedTuple):
    """What a check looked at: bad is what is above `limit`, or below it. Both are `[S, U]`, or broadcast to it."""

    value: Any
    limit: Any
    above: bool = True


class Series:
    """A run's metrics `[S, U]` as float64, its settings, and where in the training each update is."""

    def __init__(self, metrics: Mapping[str, np.ndarray], config: Mapping[str, Any], num_updates: int, exact: bool):
        self.metrics, self.config, self.exact = metrics, config, exact
        self.shape = next(iter(metrics.values())).shape
        self.read: set[str] = set()
        """the metrics that were looked at"""
        self.num_updates = max(num_updates, self.shape[1])
        self.progress = (np.arange(self.shape[1]) + 1) / self.num_updates
        """share of the planned training that is done after each update, `[U]`"""

    def __contains__(self, name: str) -> bool:
        return name in self.metrics

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.metrics:
            raise UnknownError(f"the metric {name}")
        self.read.add(name)
        return np.asarray(self.metrics[name], np.float64)

    def setting(self, name: str) -> Any:
        if name not in self.config:
            raise UnknownError(f"the setting {name}")
        return self.config[name]

    def window(self, share: float) -> int:
        """Updates in `share` of the training; one at least for 0, and three for anything more."""
        return 1 if share == 0 else int(np.clip(round(share * self.num_updates), 3, 200))

    def smooth(self, x: np.ndarray, share: float = 0.1) -> np.ndarray:
        """Rolling mean over `share` of the training; NaN where less than half of the window is defined."""
        window, finite = self.window(share), np.isfinite(x)
        total, count = rolling_sum(np.where(finite, x, 0), window), rolling_sum(finite, window)
        return np.where(count >= window / 2, total / np.maximum(count, 1), np.nan)

    def at_start(self, x: np.ndarray) -> np.ndarray:
        """Mean over a fiftieth of the training from where `x` is defined on; NaN if that is late. `[S, 1]`"""
        begun = np.cumsum(np.isfinite(x), axis=1)
        early = np.arange(self.shape[1]) < self.window(0.1)
        return mean_where(x, early & (begun <= max(1, round(0.02 * self.num_updates))))

    def before(self, x: np.ndarray, share: float) -> np.ndarray:
        """`x` as it was `share` of the training before; NaN where that is before the start."""
        lag = min(self.window(share), self.shape[1])
        return np.concatenate([np.full((self.shape[0], lag), np.nan), x[:, : self.shape[1] - lag]], axis=1)

    @property
    def practised(self) -> Any:
        """Where there have been so many gradient steps that a critic should have learned; everywhere if not known."""
        return np.cumsum(self["gradient_steps"], axis=1) > 1000 if "gradient_steps" in self else True

    @property
    def actions(self) -> np.ndarray:
        """The number of a Discrete space's actions, from entropy / log A. `[S, 1]`"""
        return np.round(np.exp(self.at_start(self["entropy"]) / self.at_start(self["relative_entropy"])))

    @property
    def kl(self) -> np.ndarray:
        """The exact KL; its estimate where a log has no other."""
        return self["kl"] if "kl" in self else self["approx_kl"]

    @property
    def score(self) -> np.ndarray:
        """What a seed's score is read from."""
        return self["mean_policy_return"] if "mean_policy_return" in self else self["return_mean"]

    @functools.cached_property
    def kind(self) -> str:
        return kind_of(self.metrics)

    @functools.cached_property
    def discrete(self) -> bool:
        """Whether relative_entropy is a share of log A, in [0, 1] from near 1: a Box has a change in nats, from 0."""
        return bool(np.nanmax(self.at_start(self["relative_entropy"]), initial=-np.inf) > 0.5)


def kind_of(metrics: Mapping[str, Any]) -> str:
    """'ppo', 'dqn', 'cem', or '' where the metrics do not tell."""
    for kind, names in (
        ("cem", ("elite_mean",)),
        ("dqn", ("td_loss", "churn")),
        ("ppo", ("clip_fraction", "approx_kl")),
    ):
        if any(name in metrics for name in names):
            return kind
    return ""


def rolling_sum(x: np.ndarray, window: int) -> np.ndarray:
    """Sum over each update and up to `window` - 1 before it, along the last axis."""
    total = np.cumsum(x, axis=-1, dtype=np.float64)
    total[..., window:] -= total[..., :-window].copy()
    return total


def mean_where(x: np.ndarray, where: Any) -> np.ndarray:
    """Mean over those updates that are defined, `[S, 1]`; NaN where none is."""
    some = np.isfinite(x) & where
    count = some.sum(axis=1, keepdims=True)
    return np.where(count > 0, np.where(some, x, 0).sum(axis=1, keepdims=True) / np.maximum(count, 1), np.nan)


class Check(NamedTuple):
    """One check; `meaning` is its function's docstring."""

    name: str
    severity: str
    kinds: tuple[str, ...]
    title: str
    what: str
    """what its value is"""
    look: Callable[[Series], Look]
    meaning: str
    tries: str
    source: str
    window: float
    """share of the training that it has to last; 0: one update"""
    share: float
    """of the window's defined updates, how many must be beyond the limit"""
    explains: tuple[str, ...]
    """checks that follow from this one"""
    across: bool
    """whether it is about all seeds together, or all seeds share one value"""


CHECKS: dict[str, Check] = {}


def check(
    severity: str,
    kinds: tuple[str, ...],
    title: str,
    what: str,
    *,
    tries: str,
    source: str,
    window: float = 0.0,
    share: float = 0.5,
    explains: Sequence[str] = (),
    across: bool = False,
) -> Callable[[Callable[[Series], Look]], Callable[[Series], Look]]:
    """Register a check."""

    def register(look: Callable[[Series], Look]) -> Callable[[Series], Look]:
        name, meaning = look.__name__, " ".join((look.__doc__ or "").split())
        CHECKS[name] = Check(
            name, severity, kinds, title, what, look, meaning, tries, source, window, share, tuple(explains), across
        )
        return look

    return register


def above(value: Any, limit: Any, where: Any = True) -> Look:
    """Bad where `value` is above `limit`; looked at only where `where`."""
    return Look(np.where(where, value, np.nan), limit)


def below(value: Any, limit: Any, where: Any = True) -> Look:
    """Bad where `value` is below `limit`; looked at only where `where`."""
    return Look(np.where(where, value, np.nan), limit, above=False)


# What follows from what: a name stands for the checks whose cause may lie further up.
OUTCOME = ("no_progress", "worse_than_start", "fell_back", "length_constant", "max_return_far", "kl_tiny")
POLICY = ("entropy_maximal", "entropy_collapse", "entropy_plateau", "policy_stuck", "dormant_units", *OUTCOME)
CRITIC = (
    "explained_variance_negative", "explained_variance_zero", "value_bias", "value_bound", "value_impossible",
    "advantage_mean", "overestimation_grows", "targets_out_of_range", "targets_huge", "values_drift",
)  # fmt: skip
STEPS = (
    "kl_high", "kl_huge", "kl_rises", "update_ratio_high", "update_ratio_low", "gradient_clipped", "gradient_zero",
    "ratio_never_moves",
)  # fmt: skip
SEARCH = ("search_collapse", "kl_at_floor", "search_widens", "policy_apart", *OUTCOME)
EVERYTHING = (*STEPS, *CRITIC, *POLICY, *SEARCH)


# --- Bookkeeping: what must hold whatever the task is.


@check(
    "ERROR", ALL, "Non-finite numbers", "nonfinite", source="rlref", explains=EVERYTHING,
    tries="find the first update; lower the learning rate; look for a logarithm or a division of 0 in the environment",
)  # fmt: skip
def nonfinite(m: Series) -> Look:
    """A loss, gradient, value or return is NaN or infinite: everything after it is lost."""
    return above(m["nonfinite"], 0)


@check(
    "ERROR", PPO, "First ratio is not 1", "max |ratio - 1| in the first minibatch", source="37 details",
    explains=EVERYTHING,
    tries="compare log-probs when acting and when learning: masks, normalisation, clipped actions, stale parameters",
)  # fmt: skip
def first_ratio_off(m: Series) -> Look:
    """Before the first gradient step the policy is the one that acted, so every ratio is 1; here it is not, so the
    stored log-probs are of another policy, other observations or other actions."""
    return above(m["first_ratio_error"], 1e-4 if m.exact else 3e-2)


@check(
    "ERROR", PPO, "Ratio never moves", "approx_kl", source="rlref", window=0.05, share=0.9, explains=(*CRITIC, *POLICY),
    tries="is the update applied? is the old log-prob computed anew in every step?",
)  # fmt: skip
def ratio_never_moves(m: Series) -> Look:
    """After gradient steps all ratios are still 1: the update is not applied, or the old log-prob is recomputed."""
    moving = (m["gradient_steps"] > 1) & (m["learning_rate"] > 0)
    # A deterministic policy has nowhere to go; nor has one of a single action, whose relative entropy is undefined.
    moving &= m["relative_entropy"] > 0.02 if m.discrete else np.isfinite(m["relative_entropy"])
    return below(np.abs(m["approx_kl"]) + m["clip_fraction"], 1e-12, where=moving)


@check(
    "ERROR", ALL, "KL below 0", "kl", source="Jones 2021",
    tries="check the order and the normalisation of the two distributions",
)  # fmt: skip
def kl_negative(m: Series) -> Look:
    """An exact KL divergence cannot be negative: it is computed wrongly, or the probabilities do not sum to 1."""
    return below(m["kl"], -1e-6 if m.exact else -1e-3)


@check(
    "ERROR", GRADIENT, "Gradient is 0", "grad_norm", source="rlref", explains=EVERYTHING,
    tries="is the loss detached from the parameters? are the rewards all 0, or all units dead?",
)  # fmt: skip
def gradient_zero(m: Series) -> Look:
    """The gradient is exactly 0 and the loss is not: it does not depend on the parameters."""
    loss = m["td_loss"] if m.kind == "dqn" else m["value_loss"]
    return below(m["grad_norm"], 1e-30, where=(m["gradient_steps"] > 0) & (loss > 1e-12))


@check(
    "ERROR", GRADIENT, "Parameters do not move", "update_ratio", source="rlref", explains=(*STEPS, *CRITIC, *POLICY),
    tries="is the learning rate 0, or the optimiser's step thrown away?",
)  # fmt: skip
def parameters_frozen(m: Series) -> Look:
    """There is a gradient, and yet the parameters stay as they are."""
    return below(m["update_ratio"], 1e-12, where=(m["gradient_steps"] > 0) & (m["grad_norm"] > 0))


@check(
    "WARN", GRADIENT, "Learning rate off its schedule", "learning_rate / its schedule - 1", source="rlref",
    explains=(*STEPS, *CRITIC, *POLICY), tries="compare it with learning_rate and anneal_lr",
)  # fmt: skip
def learning_rate_off(m: Series) -> Look:
    """The step size is not what the settings say."""
    start, left = m.setting("learning_rate"), 1 - np.arange(m.shape[1]) / m.num_updates
    expected = start * (left if m.setting("anneal_lr") else np.ones(m.shape[1]))
    return above(np.abs(m["learning_rate"] - expected) / np.maximum(start, 1e-30), 0.01)


@check(
    "WARN", GRADIENT, "Number of gradient steps is off", "gradient_steps, beside what they should be", source="rlref",
    explains=(*STEPS, *CRITIC, *POLICY), tries="look at the loops over epochs and minibatches, and at target_kl",
)  # fmt: skip
def gradient_steps_off(m: Series) -> Look:
    """An update takes other than its number of gradient steps."""
    steps = m["gradient_steps"]
    if m.kind == "dqn":
        learned = (m["env_steps"] - m.setting("learning_starts")) // m.setting("train_frequency") + 1
        return above(np.abs(steps - np.clip(learned, 0, m.setting("cycles_per_update"))), 1)
    expected = m.setting("update_epochs") * m.setting("num_minibatches")
    if m.setting("target_kl") is None:
        return above(np.abs(steps - expected), 0)
    return above(np.maximum(steps - expected, steps % m.setting("num_minibatches")), 0)  # whole epochs, or fewer


@check(
    "WARN", DQN, "Epsilon off its schedule", "epsilon - its schedule", source="rlref", explains=(*CRITIC, *POLICY),
    tries="does it count environment steps of one seed? does it end at end_e after exploration_fraction?",
)  # fmt: skip
def epsilon_off(m: Series) -> Look:
    """Random actions are not taken as often as the settings say."""
    start, end = m.setting("start_e"), m.setting("end_e")
    lasts = max(m.setting("exploration_fraction") * m.setting("total_timesteps"), 1)
    size = m.setting("cycles_per_update") * m.setting("train_frequency")
    at = np.arange(m.shape[1])[:, None] * size + np.arange(0, size, m.setting("num_envs"))  # [U, steps]
    expected = (start + (end - start) * np.minimum(at / lasts, 1)).mean(axis=1)
    return above(np.abs(m["epsilon"] - expected), 0.01)


@check(
    "WARN", DQN, "Less random than epsilon says", "action_entropy - entropy", source="rlref", window=0.05,
    share=0.8, explains=(*CRITIC, *POLICY),
    tries="is the greedy action taken where the random one should be? are keys used twice?",
)  # fmt: skip
def exploration_missing(m: Series) -> Look:
    """Actions pooled over an update are at least as random as the policy was on average; here they are less."""
    return below(m["action_entropy"] - m["entropy"], -0.05)


@check(
    "WARN", DQN, "Replay buffer does not fill", "buffer_fill / expected", source="rlref", explains=(*CRITIC, *POLICY),
    tries="look at the index that is written to",
)  # fmt: skip
def buffer_off(m: Series) -> Look:
    """The buffer holds less than what was collected, or never overwrites."""
    expected = np.minimum(m["env_steps"] / m.setting("buffer_size"), 1)
    return below(m["buffer_fill"] / expected, 0.9)


@check(
    "ERROR", DQN, "Replay buffer changes observations", "unstorable_fraction", source="rlref", explains=EVERYTHING,
    tries="buffer_dtype same; or uint8 for whole numbers to 255, bool for 0 and 1",
)  # fmt: skip
def observations_changed(m: Series) -> Look:
    """The environment shows what buffer_dtype cannot hold, so learning is from other observations than acting."""
    return above(m["unstorable_fraction"], 0)


@check(
    "WARN", DQN, "Replay is not uniform in age", "mean age of samples / age of the oldest", source="rlref",
    window=0.05, share=0.8, explains=(*CRITIC, *POLICY),
    tries="does sampling reach exactly what is filled, and writing go round the whole buffer?",
)  # fmt: skip
def sample_age_off(m: Series) -> Look:
    """Uniform samples are on average half as old as the oldest transition; here they are not."""
    oldest = np.minimum(m["env_steps"], m.setting("buffer_size"))
    size, row = m["env_steps"][:, :1], m.setting("num_envs") * m.setting("n_step")
    return above(np.abs(m["sample_age"] / oldest - 0.5), 0.1 + row / oldest, where=m["env_steps"] > 20 * size)


@check(
    "ERROR", DQN, "Target network never moves", "target_step", source="rlref", explains=EVERYTHING,
    tries="is the target synced, and the synced one used?",
)  # fmt: skip
def target_frozen(m: Series) -> Look:
    """At a sync the target network stays as it was, though the online network moves: it is never synced."""
    return below(m["target_step"], 1e-12, where=m["update_ratio"] > 1e-6)  # what float32 can hold


@check(
    "ERROR", DQN, "Target network is the online network", "target_distance", source="rlref", explains=EVERYTHING,
    tries="is the target a copy, or another name for the same parameters?",
)  # fmt: skip
def target_aliased(m: Series) -> Look:
    """Just before a sync the target network equals the online one: it moves with every gradient step."""
    return below(m["target_distance"], 1e-12, where=m["update_ratio"] > 1e-6)


@check(
    "ERROR", CEM, "Elites score below the population", "elite_mean - return_mean", source="rlref", explains=SEARCH,
    tries="look at the sign and the order of the selection",
)  # fmt: skip
def elites_below(m: Series) -> Look:
    """The mean score of the elites is below that of all candidates: the wrong ones are chosen."""
    margin = -1e-5 * (np.abs(m["return_mean"]) + m["return_std"])
    return below(m["elite_mean"] - m["return_mean"], margin, where=m["return_std"] > 0)


@check(
    "ERROR", CEM, "Elites are not the best", "elite_threshold - (return_max or the mean of the rest)", source="rlref",
    explains=SEARCH, tries="are as many chosen as elite_fraction says, the highest scores first?",
)  # fmt: skip
def elites_not_best(m: Series) -> Look:
    """With the elites' mean and lowest score as they are, the others would have to score higher than they do."""
    population = m.setting("population_size")
    elites = max(round(m.setting("elite_fraction") * population), 2)
    if elites >= population:
        raise UnknownError("candidates that are no elites")
    rest = (population * m["return_mean"] - elites * m["elite_mean"]) / (population - elites)
    slack = 1e-4 * (np.abs(m["return_mean"]) + m["return_std"])
    return below(m["elite_threshold"] - rest, -slack, where=m["return_std"] > 0)


@check(
    "WARN", CEM, "Extra variance off its schedule", "extra_variance - its schedule", source="Szita & Lorincz 2006",
    explains=SEARCH, tries="it falls linearly to 0 over extra_variance_fraction of the generations",
)  # fmt: skip
def extra_variance_off(m: Series) -> Look:
    """The noise floor is not what the settings say."""
    start, last = m.setting("extra_variance"), m.setting("extra_variance_fraction") * m.num_updates
    expected = start * np.maximum(1 - np.arange(m.shape[1]) / max(last, 1e-9), 0)
    return above(np.abs(m["extra_variance"] - expected), 0.01 * start + 1e-9)


@check(
    "ERROR", CEM, "Variance below its floor", "std_min^2 / extra variance of the generation before", source="rlref",
    explains=SEARCH, tries="is the extra variance added to the variance, after smoothing?",
)  # fmt: skip
def floor_not_held(m: Series) -> Look:
    """The smallest variance is below what was added to every parameter: the noise floor is not added."""
    added = m.before(m["extra_variance"], 0)  # by one generation
    return below(m["std_min"] ** 2 / added, 0.99, where=added > 1e-9)


# --- The environment and the rewards.


@check(
    "WARN", GRADIENT, "Discount 1, and no ends", "gamma", source="Schulman 2016", window=0.1, share=1.0,
    explains=EVERYTHING, tries="lower gamma: values reach 1 / (1 - gamma) steps ahead; or end the episodes",
)  # fmt: skip
def undiscounted_without_ends(m: Series) -> Look:
    """With gamma 1 the value is a sum over whole episodes, and no episode has ended: it has no bound."""
    none_yet = np.nansum(m["episodes"], axis=1, keepdims=True) == 0
    return above(np.full(m.shape, float(m.setting("gamma"))), 0.99999, where=none_yet)


@check(
    "WARN", ALL, "No signal", "spread of all rewards and returns so far", source="ML debugging evidence map",
    window=0.25, share=1.0, explains=EVERYTHING,
    tries="look at random play (rlref inspect); explore more, shape the reward, or make the task easier",
)  # fmt: skip
def no_signal(m: Series) -> Look:
    """Neither reward nor return has varied since the first update: there is nothing to learn from."""
    high, low = ("return_max", "return_min") if "return_max" in m else ("return_mean", "return_mean")
    spread = spread_so_far(m[low], m[high])
    if "reward_max" in m:
        spread = np.fmax(spread, spread_so_far(m["reward_min"], m["reward_max"]))
    return below(spread, 1e-12, where=~(spread > 1e-12).any(axis=1, keepdims=True))


@check(
    "INFO", GRADIENT, "Value targets out of range", "largest |target|", source="Jones 2021", window=0.1,
    tries="multiply the reward so that targets lie in [-3, 3]; never shift it: that changes the will to live",
)  # fmt: skip
def targets_out_of_range(m: Series) -> Look:
    """Networks learn values of the order of 1 best; targets here are outside [-10, 10]."""
    return above(largest(m["target_min"], m["target_max"]), 10)


@check(
    "WARN", GRADIENT, "Rewards far too large", "largest |target|", source="rlref", window=0.05,
    explains=(
        "gradient_clipped", "kl_high", "kl_huge", "kl_rises", "update_ratio_high",
        "update_ratio_low", *CRITIC, *POLICY,
    ),
    tries="multiply the reward so that targets lie in [-3, 3]; never shift it: that changes the will to live",
)  # fmt: skip
def targets_huge(m: Series) -> Look:
    """Value targets are so large that the critic's loss drowns everything else, and it takes ages to reach them."""
    size, gamma = largest(m["target_min"], m["target_max"]), m.setting("gamma")
    # Targets beyond what such rewards can give are another matter: value_bound.
    return above(size, 400, where=size * (1 - gamma) <= 3 * largest_reward(m))


def spread_so_far(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far the largest of all maxima so far is from the smallest of all minima."""
    return np.fmax.accumulate(high, axis=1) - np.fmin.accumulate(low, axis=1)


def largest(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The largest absolute value between a minimum and a maximum."""
    return np.maximum(np.abs(low), np.abs(high))


@check(
    "INFO", ALL, "Best return far above the mean", "(return_max - return_mean) / return_std", source="Schulman 2017",
    window=0.1, tries="the signal is there to be honed in on: train longer, lower the learning rate",
)  # fmt: skip
def max_return_far(m: Series) -> Look:
    """Some episodes do far better than the mean: the policy does the right thing at times."""
    return above((m["return_max"] - m["return_mean"]) / m["return_std"], 4, where=m["return_std"] > 0)


@check(
    "INFO", GRADIENT, "All episodes have one length", "length_mean", source="Jones 2021", window=0.1, share=1.0,
    tries="is it solved, or always a time limit, or is the environment reset at every step?",
)  # fmt: skip
def length_constant(m: Series) -> Look:
    """The last 100 episodes were all of the same length: solved, stuck, or an environment that never varies."""
    return above(m["length_mean"], 0, where=(m["length_std"] == 0) & (m["return_count"] >= 10))


# --- The size of updates.


@check(
    "ERROR", PPO, "KL huge", "kl", source="Schulman 2017", explains=(*CRITIC, *POLICY, *STEPS),
    tries="lower the learning rate; look at what the rollout holds: stale data gives this too",
)  # fmt: skip
def kl_huge(m: Series) -> Look:
    """One update changed the policy beyond recognition: .01 is very small, 10 is too much."""
    return above(m.kl, 10)


@check(
    "WARN", PPO, "KL high", "kl", source="rlref; Spinning Up", window=0.05,
    explains=("kl_above_usual", "kl_rises", *CRITIC, *POLICY),
    tries="lower the learning rate, take fewer epochs, or set target_kl",
)  # fmt: skip
def kl_high(m: Series) -> Look:
    """The policy moves so fast that the samples it learns from are no longer its own."""
    return above(m.kl, 0.1)


@check(
    "INFO", PPO, "KL above .02", "kl", source="37 details; Spinning Up", window=0.05,
    tries="a lower learning rate, fewer epochs, or target_kl, if returns are not rising",
)  # fmt: skip
def kl_above_usual(m: Series) -> Look:
    """Updates are larger than the usual .01 to .02, or than 1.5 x target_kl."""
    target = m.config.get("target_kl")
    return above(m.kl, 1.5 * target if target else 0.02)


@check(
    "INFO", PPO, "KL tiny", "kl", source="Schulman 2016, Jones 2021", window=0.1,
    tries="raise the learning rate, unless the task is solved",
)  # fmt: skip
def kl_tiny(m: Series) -> Look:
    """The policy hardly changes."""
    return below(m.kl, 1e-5, where=early_rate(m) if "learning_rate" in m else True)


@check(
    "WARN", PPO, "KL rises steadily", "kl, against its start", source="Jones 2021", window=0.2, share=0.9,
    explains=("kl_above_usual", "kl_high", *POLICY),
    tries="is old experience fed again? does the buffer of the rollout grow?",
)  # fmt: skip
def kl_rises(m: Series) -> Look:
    """Each update changes the policy more than the last: old experience may be learned from again and again."""
    level = m.smooth(m.kl, 0.05)
    rising = level > 1.05 * m.before(level, 0.1)
    return above(level / np.maximum(m.at_start(m.kl), 5e-3), 5, where=rising & (m.progress > 0.3))


@check(
    "WARN", GRADIENT, "Steps too large", "update_ratio", source="CS231n", window=0.05,
    explains=("kl_high", "kl_huge", "kl_rises", *CRITIC, *POLICY), tries="lower the learning rate",
)  # fmt: skip
def update_ratio_high(m: Series) -> Look:
    """Optimiser steps are large beside the parameters: about 1/1000 is usual."""
    return above(m["update_ratio"], 5e-3, where=early_rate(m))


@check(
    "INFO", GRADIENT, "Steps small", "update_ratio", source="CS231n", window=0.05, explains=("kl_tiny",),
    tries="raise the learning rate, unless the values are learned already",
)  # fmt: skip
def update_ratio_low(m: Series) -> Look:
    """Optimiser steps are tiny beside the parameters: about 1/1000 is usual."""
    return below(m["update_ratio"], 1e-4, where=early_rate(m))


def early_rate(m: Series) -> np.ndarray:
    """Where the learning rate is above half its start."""
    return m["learning_rate"] > 0.5 * m["learning_rate"][:, :1]


@check(
    "INFO", GRADIENT, "Gradient clipped at every update", "grad_norm", source="rlref", window=0.1, share=1.0,
    tries="smaller rewards or a larger max_grad_norm; the value's gradient may starve the policy's",
)  # fmt: skip
def gradient_clipped(m: Series) -> Look:
    """Every gradient is cut to max_grad_norm: its size says nothing any more."""
    norm = m.setting("max_grad_norm")
    return above(m["grad_norm"], math.inf if norm is None else norm)


# --- The critic.


@check(
    "WARN", GRADIENT, "Critic worse than a constant", "explained_variance", source="Schulman 2017", window=0.1,
    share=0.8, explains=(*POLICY, "value_bias", "advantage_mean"),
    tries="normalise observations, scale rewards, take larger batches; look at the targets",
)  # fmt: skip
def explained_variance_negative(m: Series) -> Look:
    """Predicting the mean would be better than the value function: it overfits, or is noise."""
    return below(m["explained_variance"], -0.1, where=(m.progress > 0.1) & targets_vary(m))


@check(
    "WARN", GRADIENT, "Values not learned", "explained_variance", source="Jones 2021", window=0.3, share=0.9,
    explains=(*POLICY, "value_bias", "advantage_mean"),
    tries="look at the value loss, its weight and the scale of the rewards",
)  # fmt: skip
def explained_variance_zero(m: Series) -> Look:
    """Late in training the value function still explains nothing of the returns."""
    late = (m.progress > 0.3) & m.practised
    return below(np.abs(m["explained_variance"]), 0.05, where=late & targets_vary(m))


def targets_vary(m: Series) -> Any:
    """Where the spread of the targets is worth explaining: once a task is solved, all states may be worth the same."""
    return m["target_std"] > 0.1 * np.abs(m["target_mean"]) if "target_std" in m else True


@check(
    "WARN", GRADIENT, "Values are off by a constant", "|value_bias| / scale of targets", source="rlref", window=0.2,
    share=0.8, explains=("advantage_mean", *POLICY),
    tries="scale the rewards; loosen the clip of the value loss; look at bootstraps at the end of episodes",
)  # fmt: skip
def value_bias(m: Series) -> Look:
    """Values are wrong by an offset, to which explained variance is blind."""
    scale = m["target_std"] + 0.1 * np.abs(m["target_mean"])
    return above(np.abs(m["value_bias"]) / scale, 1.2, where=(m.progress > 0.3) & m.practised)


@check(
    "WARN", PPO, "Advantages not centred", "|advantage_mean| / scale", source="Jones 2021", window=0.2,
    share=0.8, explains=POLICY, tries="look at generalised advantage estimation, and at the critic",
)  # fmt: skip
def advantage_mean(m: Series) -> Look:
    """Before normalisation advantages should be about 0 on average: the critic is off, or the estimate is."""
    scale = m["advantage_std"] + 0.1 * np.abs(m["target_mean"])
    return above(np.abs(m["advantage_mean"]) / scale, 1.2, where=(m.progress > 0.3) & m.practised)


def beyond_bound(m: Series) -> np.ndarray:
    """The largest |value| beside what the rewards seen so far allow, |r| / (1 - gamma); NaN for no rewards.

    A bound below 1 counts as 1: networks begin with values of that order.
    """
    gamma = m.setting("gamma")
    if gamma >= 1:
        raise UnknownError("a gamma below 1")
    reward = largest_reward(m)
    return largest(m["value_min"], m["value_max"]) / np.maximum(np.where(reward > 0, reward, np.nan) / (1 - gamma), 1)


def largest_reward(m: Series) -> np.ndarray:
    """The largest |reward| so far."""
    return np.fmax.accumulate(largest(m["reward_min"], m["reward_max"]), axis=1)


@check(
    "WARN", GRADIENT, "Values beyond their bound", "largest |value| / bound", source="arithmetic", window=0.05,
    explains=(*POLICY, "overestimation_grows", "explained_variance_negative", "value_bias"),
    tries="is termination ignored, or the bootstrap counted twice? does the critic diverge?",
)  # fmt: skip
def value_bound(m: Series) -> Look:
    """Values are larger than the largest reward for ever after could give."""
    return above(beyond_bound(m), 5 if m.kind == "dqn" else 1.2, where=m.progress > 0.05)


@check(
    "ERROR", GRADIENT, "Values impossible", "largest |value| / bound", source="arithmetic", window=0.05,
    explains=(*CRITIC, *POLICY),
    tries="is termination ignored, or the bootstrap counted twice? does the critic diverge?",
)  # fmt: skip
def value_impossible(m: Series) -> Look:
    """Values are far beyond what the largest reward for ever after could give: divergence, or a wrong bootstrap."""
    return above(beyond_bound(m), 20 if m.kind == "dqn" else 2, where=m.progress > 0.05)


@check(
    "INFO", DQN, "Values beyond their bound for a while", "largest |value| / bound", source="van Hasselt et al. 2018",
    window=0.05, tries="a slower target network; nothing, if they come back",
)  # fmt: skip
def soft_divergence(m: Series) -> Look:
    """Q is larger than any return can be: with bootstraps, deep networks and replay that happens, and mostly passes."""
    return above(beyond_bound(m), 1.2)


@check(
    "WARN", GRADIENT, "Values drift without end", "|target_mean|, change over a fifth of the training / spread",
    source="rlref", window=0.1, share=0.9, explains=(*CRITIC, *POLICY),
    tries="lower gamma; look at what happens to the bootstrap at the end of episodes",
)  # fmt: skip
def values_drift(m: Series) -> Look:
    """Undiscounted targets grow steadily, far beyond their own spread: values feed on themselves."""
    if m.setting("gamma") < 0.9999:
        raise UnknownError("gamma 1")
    level = m.smooth(np.abs(m["target_mean"]), 0.05)
    return above(
        (level - m.before(level, 0.2)) / np.maximum(m.smooth(m["target_std"], 0.05), 1), 3, where=m.progress > 0.5
    )


@check(
    "WARN", DQN, "Overestimation grows", "overestimation / spread of targets", source="van Hasselt et al. 2016",
    window=0.2, share=0.9, explains=POLICY, tries="double Q-learning (target double), a slower target network",
)  # fmt: skip
def overestimation_grows(m: Series) -> Look:
    """Q exceeds the returns that follow by more and more: the maximum picks what is overestimated."""
    now = m.smooth(m["overestimation"], 0.1)
    scale = m["target_std"] + 0.1 * np.abs(m["target_mean"])
    return above(now / scale, 1, where=(m.progress > 0.3) & (now > m.before(now, 0.1)))


# --- The policy.


@check(
    "ERROR", GRADIENT, "Entropy impossible", "relative_entropy", source="arithmetic", explains=POLICY,
    tries="is it summed over the actions, and averaged over everything else? do the probabilities sum to 1?",
)  # fmt: skip
def entropy_impossible(m: Series) -> Look:
    """Entropy is above that of uniform actions, log A, or below 0: it is computed wrongly."""
    x = discrete_entropy(m)
    return above(np.maximum(x - 1, -x), 1e-3 if m.exact else 3e-2)


@check(
    "WARN", PPO, "Policy stays random", "relative_entropy", source="Jones 2021, Schulman 2017", window=0.2, share=0.9,
    explains=OUTCOME, tries="look at the advantages, the sign of the loss, the gradient and the environment",
)  # fmt: skip
def entropy_maximal(m: Series) -> Look:
    """Late in training the policy is still almost uniform: nothing has been learned."""
    gain = m.smooth(m.score) - m.at_start(m["return_mean"]) if "return_mean" in m else np.zeros(m.shape)
    spread = m.at_start(m["return_std"]) if "return_std" in m else np.zeros((m.shape[0], 1))
    return above(discrete_entropy(m), 0.95, where=(m.progress > 0.4) & ~(gain > spread))


@check(
    "WARN", PPO, "Entropy falls too fast", "relative_entropy", source="Schulman 2016, Jones 2021, Rahtz 2018",
    window=0.02, share=1.0, explains=("gradient_zero", "kl_tiny", "ratio_never_moves", *OUTCOME),
    tries="a larger ent_coef, smaller rewards, a lower learning rate",
)  # fmt: skip
def entropy_collapse(m: Series) -> Look:
    """The policy became deterministic before it had explored."""
    x, limit, early = m["relative_entropy"], 0.05 if m.discrete else -2.0, m.progress <= 0.2
    # Where it was low at the end of the first fifth, it lasts until it is not.
    then = x[:, [max(early.sum() - 1, 0)]] < limit
    return below(x, limit, where=early | (then & early.any()))


@check(
    "WARN", PPO, "Random among some of the actions", "distance of relative_entropy from log k / log A",
    source="Rahtz 2018", window=0.2, share=0.95,
    explains=OUTCOME, tries="look at the actions taken: some are never tried, the others are chosen blindly",
)  # fmt: skip
def entropy_plateau(m: Series) -> Look:
    """Entropy stays at log k / log A: the policy picks at random among k of its A actions."""
    x, num_actions = discrete_entropy(m), m.actions
    k = np.arange(2, 64)
    levels = np.where(k < num_actions, np.log(k) / np.log(np.maximum(num_actions, 2)), np.nan)  # [S, k]
    if not np.isfinite(levels).any():
        raise UnknownError("a third action")
    distance = np.abs(x[..., None] - levels[:, None])
    nearest = np.nanargmin(np.where(np.isnan(distance), np.inf, distance), axis=-1)
    between = np.log((k + 1) / k) / np.log(np.maximum(num_actions, 2))  # to the level above
    near = np.minimum(0.01, np.take_along_axis(between, nearest, axis=1) / 4)
    stays = np.abs(x - m.smooth(x, 0.2)) < 0.005
    return below(np.take_along_axis(distance, nearest[..., None], axis=-1)[..., 0], near, where=stays)


def discrete_entropy(m: Series) -> np.ndarray:
    """Entropy as a share of that of uniform actions."""
    if not m.discrete:
        raise UnknownError("an entropy near log A at the start, as discrete actions have")
    return m["relative_entropy"]


@check(
    "WARN", GRADIENT, "Dormant units", "dormant_fraction", source="Sokar et al. 2023", window=0.1,
    explains=OUTCOME, tries="lower the learning rate; smaller targets; other activations",
)  # fmt: skip
def dormant_units(m: Series) -> Look:
    """Most of the hidden units have gone silent: the network can hardly learn any more."""
    return above(m["dormant_fraction"], 0.8)


@check(
    "WARN", DQN, "One action alone", "action_entropy - that of the random actions", source="rlref", window=0.2,
    share=0.9, explains=OUTCOME, tries="look at Q of all actions in some states: the best one is the same everywhere",
)  # fmt: skip
def policy_stuck(m: Series) -> Look:
    """Beyond the random actions the same action is taken everywhere."""
    several = np.isfinite(m["relative_entropy"])  # of one action it is undefined
    return below(m["action_entropy"] - m["entropy"], 0.02, where=several & (m["epsilon"] < 0.5) & (m.progress > 0.3))


# --- The search of CEM.


@check(
    "WARN", CEM, "First candidates are alike", "return_std", source="rlref", explains=SEARCH,
    tries="does every candidate, and every parameter, have its own noise? is init_variance large enough?",
)  # fmt: skip
def candidates_alike(m: Series) -> Look:
    """All candidates of the first generation score the same, though later returns vary: they do not differ."""
    varies = spread_so_far(m["return_min"], m["return_max"]) > 0
    return below(m["return_std"], 1e-9, where=(np.arange(m.shape[1]) == 0) & varies[:, -1:])


@check(
    "WARN", CEM, "Search ends too early", "std_mean", source="Szita & Lorincz 2006", window=0.1, share=0.9,
    explains=OUTCOME, tries="more extra_variance, for longer; a larger elite_fraction; a larger population",
)  # fmt: skip
def search_collapse(m: Series) -> Look:
    """The Gaussian has shrunk to a point while scores were still getting better."""
    level = m.smooth(m.score)
    gained = level - m.before(level, 0.1)
    improving = gained > 0.1 * (np.fmax.accumulate(level, axis=1) - m.at_start(m.score))
    return below(m["std_mean"], 0.05 * m["std_mean"][:, :1], where=improving)


@check(
    "INFO", CEM, "KL at its floor", "kl_excess / kl_floor", source="rlref", window=0.2, share=0.9,
    explains=("no_progress",), tries="more rollouts, a larger population; unless it is solved",
)  # fmt: skip
def kl_at_floor(m: Series) -> Look:
    """Elites move the Gaussian no more than random ones would: scores carry no signal."""
    return below(m["kl_excess"] / m["kl_floor"], 0.1)


@check(
    "WARN", CEM, "Search widens", "std_mean / its start", source="rlref", window=0.1, share=0.9, explains=OUTCOME,
    tries="less extra_variance, or for fewer generations; is the variance taken for its root, or the other way round?",
)  # fmt: skip
def search_widens(m: Series) -> Look:
    """The Gaussian is wider than it began and what was added explain: it does not close in on anything."""
    added = np.cumsum(m["extra_variance"], axis=1)
    return above(m["std_mean"] / np.sqrt(m["std_mean"][:, :1] ** 2 + added), 1.2, where=m.progress > 0.3)


@check(
    "WARN", CEM, "The mean policy is not what was found", "(return_min - mean_policy_return) / spread",
    source="rlref", window=0.1, share=0.8, explains=OUTCOME,
    tries="is the Gaussian's mean evaluated, on fresh keys, as candidates are? more rollouts against lucky elites",
)  # fmt: skip
def policy_apart(m: Series) -> Look:
    """The mean's policy scores below every candidate drawn around it."""
    # Candidates share their keys, whose luck is not in their spread.
    scale = m["return_std"] + 0.25 * m.at_start(m["return_std"]) + 0.05 * np.abs(m["return_mean"])
    return above((m["return_min"] - m["mean_policy_return"]) / scale, 1, where=scale > 0)


# --- What came of it.


@check(
    "WARN", ALL, "Worse than at the start", "(return - return at the start) / its spread there", source="rlref",
    window=0.1, share=0.9, explains=("no_progress", "fell_back", "entropy_maximal", "length_constant"),
    tries="the sign of the loss or of the advantages; rewards that punish; steps that are too large",
)  # fmt: skip
def worse_than_start(m: Series) -> Look:
    """The policy does worse than the untrained one did: it learns the opposite, or has broken down."""
    gain, spread = m.score - m.at_start(m["return_mean"]), m.at_start(m["return_std"])
    return below(gain / spread, -0.25, where=(spread > 0) & (m.progress > 0.2))


@check(
    "WARN", ALL, "No progress", "(best return - return at the start) / its spread there", source="rlref", window=0.1,
    share=0.9, explains=("max_return_far", "kl_at_floor"),
    tries="rlref probe on your agent, rlref inspect on your environment; then CEM, which needs no gradients",
)  # fmt: skip
def no_progress(m: Series) -> Look:
    """After more than half of the training returns have not risen beyond the spread that they had at the start."""
    level = m.smooth(m.score, 0.05)
    best = np.fmax.accumulate(level, axis=1)
    gain, spread = best - m.at_start(m["return_mean"]), m.at_start(m["return_std"])
    return below(gain / spread, 1, where=(spread > 0) & (m.progress > 0.5))


@check(
    "WARN", ALL, "Fell back", "share of the gain in return that is left", source="rlref", window=0.1, share=0.9,
    tries="lower or anneal the learning rate; keep the best checkpoint; more seeds",
)  # fmt: skip
def fell_back(m: Series) -> Look:
    """It had learned, and lost more than half of it again."""
    level = m.smooth(m.score, 0.05)
    best, start = np.fmax.accumulate(level, axis=1), m.at_start(m["return_mean"])
    real = best - start > 2 * m.at_start(m["return_std"])
    return below((level - start) / (best - start), 0.5, where=real & (m.progress > 0.3))


@check(
    "INFO", ALL, "Throughput falls", "steps_per_second, of its start", source="Jones 2021, Rahtz 2018", window=0.1,
    share=0.9, across=True, tries="profile: a leak, a recompilation, or another process on the machine",
)  # fmt: skip
def throughput_falls(m: Series) -> Look:
    """Training has become slower and slower."""
    speed = m["steps_per_second"]
    if m.kind == "cem":  # a generation takes as long as its longest episode
        speed = np.where(m["length_std"] == 0, speed, np.nan)
    start = mean_where(speed, (m.progress > 0.1) & (m.progress <= 0.3))
    return below(m.smooth(speed) / start, 0.5, where=m.progress > 0.5)


@check(
    "WARN", ALL, "Seeds disagree", "share of seeds below half the median's gain", across=True,
    source="Irpan 2018, Rahtz 2018, Henderson et al. 2018",
    tries="more seeds, and the interquartile mean with its interval; look at what the bad ones have in common",
)  # fmt: skip
def seeds_disagree(m: Series) -> Look:
    """Some seeds learned and others did not: it got lucky, or it does not work."""
    gain = last(m.smooth(m.score)) - m.at_start(m["return_mean"])[:, 0]
    gain, spread = gain[np.isfinite(gain)], m.at_start(m["return_std"])
    if len(gain) < 4:
        raise UnknownError("four seeds with returns")
    learned = np.median(gain) > np.median(spread[np.isfinite(spread)])
    at_end = np.arange(m.shape[1]) == m.num_updates - 1
    return above((gain < 0.5 * np.median(gain)).mean(), 0.3 - 1e-9, where=at_end & learned)


# --- The engine.


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What all checks say of a run."""

    findings: list[Finding]
    """the leading one first; what follows from another stands under it"""
    checked: list[str]
    unchecked: dict[str, str]
    """check -> why it could not be made"""


def diagnose(
    metrics: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    *,
    num_updates: int = 0,
    seeds: Sequence[int] | None = None,
    exact: bool = True,
    kind: str = "",
) -> Diagnosis:
    """Check a run, or what there is of it so far.

    Args:
      metrics: `[S, U]` each, under the names of rlref.metrics; NaN is undefined.
      config: the settings; checks that need one which is not there are left out.
      num_updates: how many the whole training has, if more than `U`.
      seeds: the seeds' ids; 0 to S - 1 without.
      exact: whether matrix products are of full precision; thresholds on rounding are wider where they are not.
      kind: "ppo", "dqn" or "cem"; told from the metrics without.
    """
    m = Series(metrics, config, num_updates, exact)
    if kind:
        m.kind = kind
    ids = list(range(m.shape[0])) if seeds is None else list(seeds)
    findings, checked, unchecked = [], [], {}
    with np.errstate(all="ignore"):
        for one in CHECKS.values():
            if m.kind and m.kind not in one.kinds:
                continue
            if (window := m.window(one.window)) > m.shape[1]:
                unchecked[one.name] = f"{m.shape[1]} updates, of the {window} that it takes"
                continue
            m.read.clear()
            try:
                look = one.look(m)
            except UnknownError as lacking:
                unchecked[one.name] = str(lacking)
                continue
            except Exception as error:  # metrics and settings of somebody's own agent can be anything
                unchecked[one.name] = f"metrics and settings that it can read ({type(error).__name__}: {error})"
                continue
            if m.read and all(np.isnan(metrics[name]).all() for name in m.read):
                unchecked[one.name] = "any defined value"
                continue
            checked.append(one.name)
            if found := finding_of(one, m, look, window, ids):
                findings.append(found)
    return Diagnosis(grouped(findings, m.window(0.1)), checked, unchecked)


def full_precision(devices: Sequence[str] | None = None, precision: str | None = None) -> bool:
    """Whether matrix products are of full float32 precision, which by default those of GPUs and TPUs are not.

    `devices` are the kinds of the devices; without them, it is told of this process.
    """
    if devices is None:
        import jax

        devices = [device.device_kind for device in jax.devices()]
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return precision in ("highest", "float32") or all(device == "cpu" for device in devices)


def of_run(run: Run) -> Diagnosis:
    """Check a run; with batched settings, each setting by itself."""
    exact = run.path is None and full_precision()
    if run.path is not None:
        with contextlib.suppress(UsageError, LookupError):  # where it cannot be read, the wider thresholds do
            environment = read_json(run.path / "environment.json")
            exact = full_precision(environment["devices"], environment["jax_config"][PRECISION])

    def of(metrics: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Diagnosis:
        return diagnose(metrics, config, num_updates=run.num_updates, seeds=run.seeds, exact=exact)

    if not run.batched:
        return of(run.metrics, run.config)
    each = []
    for i in range(len(run.config[run.batched[0]])):
        config = run.config | {name: run.config[name][i] for name in run.batched}
        one = of({name: x[i] for name, x in run.metrics.items()}, config)
        each.append(dataclasses.replace(one, findings=[in_setting(f, i) for f in one.findings]))
    findings = sorted((f for one in each for f in one.findings), key=lambda f: SEVERITIES.index(f.worst))
    unchecked = {name: why for one in each for name, why in one.unchecked.items()}
    return Diagnosis(findings, [name for name in each[0].checked if name not in unchecked], unchecked)


def in_setting(finding: Finding, setting: int) -> Finding:
    """`finding`, and what follows from it, as one of a setting."""
    follows = tuple(in_setting(f, setting) for f in finding.follows)
    return dataclasses.replace(finding, setting=setting, follows=follows)


def finding_of(one: Check, m: Series, look: Look, window: int, ids: Sequence[int]) -> Finding | None:
    """What a check found, over its windows; None where nothing lasts."""
    value, limit = (np.broadcast_to(x, m.shape).astype(np.float64) for x in (look.value, look.limit))
    defined = ~np.isnan(value)
    bad = (value > limit) if look.above else (value < limit)
    if not bad.any():
        return None
    counted = rolling_sum(defined, window)
    enough = (counted >= max(window / 2, 1)) & (np.arange(m.shape[1]) >= window - 1)
    lasts = enough & (rolling_sum(bad, window) >= one.share * counted - 1e-9)
    if not (lasts & bad).any():
        return None
    # Every bad update of a window that is bad counts, so that the onset is where it began.
    reach = np.flip(rolling_sum(np.flip(lasts, -1), window), -1) > 0
    bad &= reach
    rows, updates = np.nonzero(bad)
    affected = np.unique(rows)
    medians = [np.median(value[row][bad[row]]) for row in affected]
    limits = np.median(limit[bad])
    return Finding(
        check=one.name,
        severity=one.severity,
        title=one.title,
        meaning=one.meaning,
        tries=one.tries,
        source=one.source,
        value=float(np.median(medians)),
        threshold=float(limits),
        what=one.what,
        onset=int(updates.min()),
        last=int(updates.max()),
        seeds=() if one.across else tuple(ids[row] for row in affected),
        num_seeds=len(ids),
    )


def grouped(findings: Sequence[Finding], slack: int = 0) -> list[Finding]:
    """Findings with what follows from them under them: the worst first, of equals that with the earlier cause.

    What begins more than `slack` updates after a finding was over does not follow from it.
    """
    order = {name: i for i, name in enumerate(CHECKS)}

    def explains(cause: Finding, other: Finding) -> bool:
        if other.check not in CHECKS[cause.check].explains or (cause.severity == "INFO" != other.severity):
            return False
        if cause.check in CHECKS[other.check].explains:  # each could be the other's cause: the earlier one is
            return (cause.onset, order[cause.check]) < (other.onset, order[other.check])
        return True

    def meet(cause: Finding, other: Finding) -> bool:
        shared = len(set(cause.seeds) & set(other.seeds))
        assert cause.onset is not None
        assert cause.last is not None
        assert other.onset is not None
        assert other.last is not None
        in_time = cause.onset <= other.last and other.onset <= cause.last + slack
        return in_time and (not cause.seeds or 2 * shared >= max(len(other.seeds), 1))

    left = sorted(findings, key=lambda f: order[f.check])
    out = []
    while left:
        # A finding that no other explains; in a ring of findings, the first.
        root = next((f for f in left if not any(explains(g, f) and meet(g, f) for g in left if g is not f)), left[0])
        left.remove(root)
        under, causes = [], [root]
        while causes:
            cause = causes.pop()
            new = [f for f in left if explains(cause, f) and meet(cause, f) and meet(root, f)]
            left = [f for f in left if f not in new]
            under += new
            causes += new
        out.append(dataclasses.replace(root, follows=tuple(sorted(under, key=lambda f: order[f.check]))))

    def rank(f: Finding) -> tuple[Any, ...]:
        few = 0 < 2 * len(f.seeds) < f.num_seeds
        return SEVERITIES.index(f.worst), SEVERITIES.index(f.severity), few, order[f.check]

    return sorted(out, key=rank)


def markdown() -> str:
    """All checks as a table, as it stands in rlref/README.md."""
    lines = ["| check | severity | of | lasts | what it means | try | source |", "|---|---|---|---|---|---|---|"]
    for one in CHECKS.values():
        lasts = "one update" if one.window == 0 else f"{one.share:.0%} of {one.window:.0%} of the training"
        kinds = ", ".join(map(str.upper, one.kinds))
        lines.append(
            f"| `{one.name}` | {one.severity} | {kinds} | {lasts} | {one.meaning} | {one.tries} | {one.source} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
