"""The memory of an agent that has one."""

from rlref.contract import RECURRENT
from rlref.health.registry import OUTCOME, Measurement, above, below, check
from rlref.health.series import Series


@check(
    "INFO", RECURRENT, "Memory unused", "memory_kl", source="rlref", window=0.2, share=0.9, explains=OUTCOME,
    tries="nothing, if each observation shows all it takes; else longer rollouts or sequence_length, for gradients to "
    "reach what is to be remembered; a higher learning rate",
    turns=("num_steps", "sequence_length", "learning_rate"),
)  # fmt: skip
def memory_unused(m: Series) -> Measurement:
    """Without its memory the policy would do the same: nothing is remembered that it acts on."""
    return below(m["memory_kl"], 1e-3, where=m.progress > 0.4)


@check(
    "WARN", RECURRENT, "Memory saturated", "memory_saturation", source="Karpathy et al. 2016", window=0.1, share=0.9,
    explains=OUTCOME, tries="a lower learning rate; normalize_observations; a smaller max_grad_norm",
    turns=("learning_rate", "normalize_observations", "max_grad_norm"),
)  # fmt: skip
def memory_saturated(m: Series) -> Measurement:
    """Most of the memory's units are at their bounds, where gradients vanish."""
    return above(m["memory_saturation"], 0.6)  # healthy: .43 at most


@check(
    "WARN", RECURRENT, "Gradients grow through time", "memory_gradient", source="Pascanu et al. 2013", window=0.05,
    share=0.9, explains=("gradient_clipped", "kl_high", "kl_huge", *OUTCOME),
    tries="a lower learning rate; a shorter sequence_length; a smaller max_grad_norm",
    turns=("learning_rate", "sequence_length", "max_grad_norm"),
)  # fmt: skip
def memory_explodes(m: Series) -> Measurement:
    """Going back through the memory, a gradient grows by this factor in every step: what is far away rules learning."""
    return above(m["memory_gradient"], 1.1)
