"""Reference reinforcement learning in JAX that people can trust, with diagnostics that tell what is going on.

run = rlref.train("ppo", num_seeds=8)       train, and return the Run
run = rlref.resume("runs/...")               go on with a run that was stopped or killed
run = rlref.load("runs/...")                 read a run's folder
"""

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from rlref.version import VERSION

if TYPE_CHECKING:
    from rlref.runs.run import Run as Run
    from rlref.runs.run import load as load
    from rlref.runs.training import resume as resume
    from rlref.runs.training import train as train

__version__ = VERSION
__all__ = ["Run", "load", "resume", "train"]

_HOME = {
    "train": "rlref.runs.training",
    "resume": "rlref.runs.training",
    "load": "rlref.runs.run",
    "Run": "rlref.runs.run",
}


def _one_cpu_device_per_core() -> None:
    """Let jax show every CPU core as a device, so that seeds can be spread over them.

    XLA's own threads slow small networks down; one device per core is about twice as fast. jax reads this only before
    it touches its first array, and importing gymnax is enough for that: hence here. Settings of the user's stay.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "jax" not in sys.modules:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(cores)
        return
    with contextlib.suppress(RuntimeError):  # jax has started already: what devices it has will do
        sys.modules["jax"].config.update("jax_num_cpu_devices", cores)


_one_cpu_device_per_core()


def __getattr__(name: str) -> Any:
    # Late, so that `rlref --help` need not wait for jax.
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'rlref' has no attribute {name!r}")
