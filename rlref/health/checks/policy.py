"""The policy: entropy, and the actions taken."""

import numpy as np

from rlref.contract import DQN, GRADIENT, PPO
from rlref.health.registry import OUTCOME, POLICY, Measurement, above, below, check
from rlref.health.series import Series, UnknownError


@check(
    "ERROR", GRADIENT, "Entropy impossible", "relative_entropy", source="arithmetic", explains=POLICY,
    tries="is it summed over the actions, and averaged over everything else? do the probabilities sum to 1?",
)  # fmt: skip
def entropy_impossible(m: Series) -> Measurement:
    """Entropy is above that of uniform actions, log A, or below 0: it is computed wrongly."""
    x = discrete_entropy(m)
    return above(np.maximum(x - 1, -x), 1e-3 if m.exact else 3e-2)


@check(
    "WARN", PPO, "Policy stays random", "relative_entropy", source="Jones 2021, Schulman 2017", window=0.2, share=0.9,
    explains=OUTCOME, tries="look at the advantages, the sign of the loss, the gradient and the environment",
)  # fmt: skip
def entropy_maximal(m: Series) -> Measurement:
    """Late in training the policy is still almost uniform: nothing has been learned."""
    gain = m.smooth(m.score) - m.at_start(m["return_mean"]) if "return_mean" in m else np.zeros(m.shape)
    spread = m.at_start(m["return_std"]) if "return_std" in m else np.zeros((m.shape[0], 1))
    return above(discrete_entropy(m), 0.95, where=(m.progress > 0.4) & ~(gain > spread))


@check(
    "WARN", PPO, "Entropy falls too fast", "relative_entropy", source="Schulman 2016, Jones 2021, Rahtz 2018",
    window=0.02, share=1.0, explains=("gradient_zero", "kl_tiny", "ratio_never_moves", *OUTCOME),
    tries="a larger ent_coef, smaller rewards, a lower learning rate",
    turns=("ent_coef", "scale_rewards", "learning_rate"),
)  # fmt: skip
def entropy_collapse(m: Series) -> Measurement:
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
def entropy_plateau(m: Series) -> Measurement:
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
    turns=("learning_rate", "activation"),
)  # fmt: skip
def dormant_units(m: Series) -> Measurement:
    """Most of the hidden units have gone silent: the network can hardly learn any more."""
    return above(m["dormant_fraction"], 0.8)


@check(
    "WARN", DQN, "One action alone", "action_entropy - that of the random actions", source="rlref", window=0.2,
    share=0.9, explains=OUTCOME, tries="look at Q of all actions in some states: the best one is the same everywhere",
)  # fmt: skip
def policy_stuck(m: Series) -> Measurement:
    """Beyond the random actions the same action is taken everywhere."""
    several = np.isfinite(m["relative_entropy"])  # of one action it is undefined
    return below(m["action_entropy"] - m["entropy"], 0.02, where=several & (m["epsilon"] < 0.5) & (m.progress > 0.3))
