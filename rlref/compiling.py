"""How much XLA is to optimise: on a CPU, compiling takes longer than many a training."""

import os
from typing import Any

import jax

from rlref.memory import on_cpu

ONCE = 0  # a program that runs once, such as the one that makes the first state
LOOP = 1  # loops of training: as fast as with all optimisations, and compiled in about half of the time


def options(level: int) -> dict[str, Any] | None:
    """The compiler options of a program, ONCE or LOOP; None elsewhere than on a CPU, or where the user has a say."""
    said = jax.config.read("jax_disable_most_optimizations") or "optimization_level" in os.environ.get("XLA_FLAGS", "")
    return {"xla_backend_optimization_level": level} if on_cpu() and not said else None
