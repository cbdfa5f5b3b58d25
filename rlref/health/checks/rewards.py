"""The environment and the rewards."""

import numpy as np

from rlref.contract import ALL, GRADIENT
from rlref.health.registry import CRITIC, EVERYTHING, POLICY, Measurement, above, below, check
from rlref.health.series import Series, largest, largest_reward, spread_so_far


@check(
    "WARN", GRADIENT, "Discount 1, and no ends", "gamma", source="Schulman 2016", window=0.1, share=1.0,
    explains=EVERYTHING, tries="lower gamma: values reach 1 / (1 - gamma) steps ahead; or end the episodes",
    turns=("gamma",),
)  # fmt: skip
def undiscounted_without_ends(m: Series) -> Measurement:
    """With gamma 1 the value is a sum over whole episodes, and no episode has ended: it has no bound."""
    none_yet = np.nansum(m["episodes"], axis=1, keepdims=True) == 0
    return above(np.full(m.shape, float(m.setting("gamma"))), 0.99999, where=none_yet)


@check(
    "WARN", ALL, "No signal", "spread of all rewards and returns so far", source="ML debugging evidence map",
    window=0.25, share=1.0, explains=EVERYTHING,
    tries="look at random play (rlref inspect); explore more, shape the reward, or make the task easier",
)  # fmt: skip
def no_signal(m: Series) -> Measurement:
    """Neither reward nor return has varied since the first update: there is nothing to learn from."""
    high, low = ("return_max", "return_min") if "return_max" in m else ("return_mean", "return_mean")
    spread = spread_so_far(m[low], m[high])
    if "reward_max" in m:
        spread = np.fmax(spread, spread_so_far(m["reward_min"], m["reward_max"]))
    return below(spread, 1e-12, where=~(spread > 1e-12).any(axis=1, keepdims=True))


@check(
    "INFO", GRADIENT, "Value targets out of range", "largest |target|", source="Jones 2021", window=0.1,
    tries="multiply the reward so that targets lie in [-3, 3]; never shift it: that changes the will to live",
    turns=("scale_rewards",),
)  # fmt: skip
def targets_out_of_range(m: Series) -> Measurement:
    """Networks learn values of the order of 1 best; targets here are outside [-10, 10]."""
    return above(largest(m["target_min"], m["target_max"]), 10)


@check(
    "WARN", GRADIENT, "Rewards far too large", "largest |target|", source="rlref", window=0.05,
    explains=(
        "gradient_clipped", "kl_high", "kl_huge", "kl_rises", "update_ratio_high",
        "update_ratio_low", *CRITIC, *POLICY,
    ),
    tries="multiply the reward so that targets lie in [-3, 3]; never shift it: that changes the will to live",
    turns=("scale_rewards",),
)  # fmt: skip
def targets_huge(m: Series) -> Measurement:
    """Value targets are so large that the critic's loss drowns everything else, and it takes ages to reach them."""
    size, gamma = largest(m["target_min"], m["target_max"]), m.setting("gamma")
    # Targets beyond what such rewards can give are another matter: value_bound.
    return above(size, 400, where=size * (1 - gamma) <= 3 * largest_reward(m))


@check(
    "INFO", ALL, "Best return far above the mean", "(return_max - return_mean) / return_std", source="Schulman 2017",
    window=0.1, tries="the signal is there to be honed in on: train longer, lower the learning rate",
    turns=("learning_rate",),
)  # fmt: skip
def max_return_far(m: Series) -> Measurement:
    """Some episodes do far better than the mean: the policy does the right thing at times."""
    return above((m["return_max"] - m["return_mean"]) / m["return_std"], 4, where=m["return_std"] > 0)


@check(
    "INFO", GRADIENT, "All episodes have one length", "length_mean", source="Jones 2021", window=0.1, share=1.0,
    tries="is it solved, or always a time limit, or is the environment reset at every step?",
)  # fmt: skip
def length_constant(m: Series) -> Measurement:
    """The last 100 episodes were all of the same length: solved, stuck, or an environment that never varies."""
    return above(m["length_mean"], 0, where=(m["length_std"] == 0) & (m["return_count"] >= 10))
