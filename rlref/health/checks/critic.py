"""The critic: values and their targets."""

import numpy as np

from rlref.contract import DQN, GRADIENT, PPO
from rlref.health.registry import CRITIC, POLICY, Measurement, above, below, check
from rlref.health.series import Series, UnknownError, largest, largest_reward, targets_vary


@check(
    "WARN", GRADIENT, "Critic worse than a constant", "explained_variance", source="Schulman 2017", window=0.1,
    share=0.8, explains=(*POLICY, "value_bias", "advantage_mean"),
    tries="normalise observations, scale rewards, take larger batches; look at the targets",
    turns=("normalize_observations", "scale_rewards"),
)  # fmt: skip
def explained_variance_negative(m: Series) -> Measurement:
    """Predicting the mean would be better than the value function: it overfits, or is noise."""
    return below(m["explained_variance"], -0.1, where=(m.progress > 0.1) & targets_vary(m))


@check(
    "WARN", GRADIENT, "Values not learned", "explained_variance", source="Jones 2021", window=0.3, share=0.9,
    explains=(*POLICY, "value_bias", "advantage_mean"),
    tries="look at the value loss, its weight and the scale of the rewards",
    turns=("vf_coef", "scale_rewards"),
)  # fmt: skip
def explained_variance_zero(m: Series) -> Measurement:
    """Late in training the value function still explains nothing of the returns."""
    late = (m.progress > 0.3) & m.enough_gradient_steps
    return below(np.abs(m["explained_variance"]), 0.05, where=late & targets_vary(m))


@check(
    "WARN", GRADIENT, "Values are off by a constant", "|value_bias| / scale of targets", source="rlref", window=0.2,
    share=0.8, explains=("advantage_mean", *POLICY),
    tries="scale the rewards; loosen the clip of the value loss; look at bootstraps at the end of episodes",
    turns=("clip_vloss", "scale_rewards"),
)  # fmt: skip
def value_bias(m: Series) -> Measurement:
    """Values are wrong by an offset, to which explained variance is blind."""
    scale = m["target_std"] + 0.1 * np.abs(m["target_mean"])
    return above(np.abs(m["value_bias"]) / scale, 1.2, where=(m.progress > 0.3) & m.enough_gradient_steps)


@check(
    "WARN", PPO, "Advantages not centred", "|advantage_mean| / scale", source="Jones 2021", window=0.2,
    share=0.8, explains=POLICY, tries="look at generalised advantage estimation, and at the critic",
)  # fmt: skip
def advantage_mean(m: Series) -> Measurement:
    """Before normalisation advantages should be about 0 on average: the critic is off, or the estimate is."""
    scale = m["advantage_std"] + 0.1 * np.abs(m["target_mean"])
    return above(np.abs(m["advantage_mean"]) / scale, 1.2, where=(m.progress > 0.3) & m.enough_gradient_steps)


def beyond_bound(m: Series) -> np.ndarray:
    """The largest |value| beside what the rewards seen so far allow, |r| / (1 - gamma); NaN for no rewards.

    A bound below 1 counts as 1: networks begin with values of that order.
    """
    gamma = m.setting("gamma")
    if gamma >= 1:
        raise UnknownError("a gamma below 1")
    reward = largest_reward(m)
    return largest(m["value_min"], m["value_max"]) / np.maximum(np.where(reward > 0, reward, np.nan) / (1 - gamma), 1)


@check(
    "WARN", GRADIENT, "Values beyond their bound", "largest |value| / bound", source="arithmetic", window=0.05,
    explains=(*POLICY, "overestimation_grows", "explained_variance_negative", "value_bias"),
    tries="is termination ignored, or the bootstrap counted twice? does the critic diverge?",
)  # fmt: skip
def value_bound(m: Series) -> Measurement:
    """Values are larger than the largest reward for ever after could give."""
    return above(beyond_bound(m), 5 if m.kind == "dqn" else 1.2, where=m.progress > 0.05)


@check(
    "ERROR", GRADIENT, "Values impossible", "largest |value| / bound", source="arithmetic", window=0.05,
    explains=(*CRITIC, *POLICY),
    tries="is termination ignored, or the bootstrap counted twice? does the critic diverge?",
)  # fmt: skip
def value_impossible(m: Series) -> Measurement:
    """Values are far beyond what the largest reward for ever after could give: divergence, or a wrong bootstrap."""
    return above(beyond_bound(m), 20 if m.kind == "dqn" else 2, where=m.progress > 0.05)


@check(
    "INFO", DQN, "Values beyond their bound for a while", "largest |value| / bound", source="van Hasselt et al. 2018",
    window=0.05, tries="a slower target network; nothing, if they come back",
    turns=("target_network_frequency", "tau"),
)  # fmt: skip
def soft_divergence(m: Series) -> Measurement:
    """Q is larger than any return can be: with bootstraps, deep networks and replay that happens, and mostly passes."""
    return above(beyond_bound(m), 1.2)


@check(
    "WARN", GRADIENT, "Values drift without end", "|target_mean|, change over a fifth of the training / spread",
    source="rlref", window=0.1, share=0.9, explains=(*CRITIC, *POLICY),
    tries="lower gamma; look at what happens to the bootstrap at the end of episodes",
    turns=("gamma",),
)  # fmt: skip
def values_drift(m: Series) -> Measurement:
    """Undiscounted targets grow steadily, far beyond their own spread: values feed on themselves."""
    if m.setting("gamma") < 0.9999:
        raise UnknownError("gamma 1")
    level = m.smooth(np.abs(m["target_mean"]), 0.05)
    return above(
        (level - m.lagged(level, 0.2)) / np.maximum(m.smooth(m["target_std"], 0.05), 1), 3, where=m.progress > 0.5
    )


@check(
    "WARN", DQN, "Overestimation grows", "overestimation / spread of targets", source="van Hasselt et al. 2016",
    window=0.2, share=0.9, explains=POLICY, tries="double Q-learning (target double), a slower target network",
    turns=("target", "target_network_frequency", "tau"),
)  # fmt: skip
def overestimation_grows(m: Series) -> Measurement:
    """Q exceeds the returns that follow by more and more: the maximum picks what is overestimated."""
    now = m.smooth(m["overestimation"], 0.1)
    scale = m["target_std"] + 0.1 * np.abs(m["target_mean"])
    return above(now / scale, 1, where=(m.progress > 0.3) & (now > m.lagged(now, 0.1)))
