"""The size of updates."""

import math

import numpy as np

from rlref.contract import GRADIENT, PPO
from rlref.health.registry import CRITIC, POLICY, STEPS, Measurement, above, below, check
from rlref.health.series import Series


@check(
    "ERROR", PPO, "KL huge", "kl", source="Schulman 2017", explains=(*CRITIC, *POLICY, *STEPS),
    tries="lower the learning rate; look at what the rollout holds: stale data gives this too",
    turns=("learning_rate",),
)  # fmt: skip
def kl_huge(m: Series) -> Measurement:
    """One update changed the policy beyond recognition: .01 is very small, 10 is too much."""
    return above(m.kl, 10)


@check(
    "WARN", PPO, "KL high", "kl", source="rlref; Spinning Up", window=0.05,
    explains=("kl_above_usual", "kl_rises", *CRITIC, *POLICY),
    tries="lower the learning rate, take fewer epochs, or set target_kl",
    turns=("learning_rate", "update_epochs", "target_kl"),
)  # fmt: skip
def kl_high(m: Series) -> Measurement:
    """The policy moves so fast that the samples it learns from are no longer its own."""
    return above(m.kl, 0.1)


@check(
    "INFO", PPO, "KL above .02", "kl", source="37 details; Spinning Up", window=0.05,
    tries="a lower learning rate, fewer epochs, or target_kl, if returns are not rising",
    turns=("learning_rate", "update_epochs", "target_kl"),
)  # fmt: skip
def kl_above_usual(m: Series) -> Measurement:
    """Updates are larger than the usual .01 to .02, or than 1.5 x target_kl."""
    target = m.config.get("target_kl")
    return above(m.kl, 1.5 * target if target else 0.02)


@check(
    "INFO", PPO, "KL tiny", "kl", source="Schulman 2016, Jones 2021", window=0.1,
    tries="raise the learning rate, unless the task is solved",
    turns=("learning_rate",),
)  # fmt: skip
def kl_tiny(m: Series) -> Measurement:
    """The policy hardly changes."""
    return below(m.kl, 1e-5, where=early_rate(m) if "learning_rate" in m else True)


@check(
    "WARN", PPO, "KL rises steadily", "kl, against its start", source="Jones 2021", window=0.2, share=0.9,
    explains=("kl_above_usual", "kl_high", *POLICY),
    tries="is old experience fed again? does the buffer of the rollout grow?",
)  # fmt: skip
def kl_rises(m: Series) -> Measurement:
    """Each update changes the policy more than the last: old experience may be learned from again and again."""
    level = m.smooth(m.kl, 0.05)
    rising = level > 1.05 * m.lagged(level, 0.1)
    return above(level / np.maximum(m.at_start(m.kl), 5e-3), 5, where=rising & (m.progress > 0.3))


@check(
    "WARN", GRADIENT, "Steps too large", "update_ratio", source="CS231n", window=0.05,
    explains=("kl_high", "kl_huge", "kl_rises", *CRITIC, *POLICY), tries="lower the learning rate",
    turns=("learning_rate",),
)  # fmt: skip
def update_ratio_high(m: Series) -> Measurement:
    """Optimiser steps are large beside the parameters: about 1/1000 is usual."""
    return above(m["update_ratio"], 5e-3, where=early_rate(m))


@check(
    "INFO", GRADIENT, "Steps small", "update_ratio", source="CS231n", window=0.05, explains=("kl_tiny",),
    tries="raise the learning rate, unless the values are learned already",
    turns=("learning_rate",),
)  # fmt: skip
def update_ratio_low(m: Series) -> Measurement:
    """Optimiser steps are tiny beside the parameters: about 1/1000 is usual."""
    return below(m["update_ratio"], 1e-4, where=early_rate(m))


def early_rate(m: Series) -> np.ndarray:
    """Where the learning rate is above half its start."""
    return m["learning_rate"] > 0.5 * m["learning_rate"][:, :1]


@check(
    "INFO", GRADIENT, "Gradient clipped at every update", "grad_norm", source="rlref", window=0.1, share=1.0,
    tries="smaller rewards or a larger max_grad_norm; the value's gradient may starve the policy's",
    turns=("max_grad_norm", "scale_rewards"),
)  # fmt: skip
def gradient_clipped(m: Series) -> Measurement:
    """Every gradient is cut to max_grad_norm: its size says nothing any more."""
    norm = m.setting("max_grad_norm")
    return above(m["grad_norm"], math.inf if norm is None else norm)
