"""Probe environments: tasks so small that the right answer is known exactly, and checks of agents against it.

    rlref probe ./my_ppo.py                          an agent that keeps rlref's contract
    gymnasium.make("rlref/Discount-v0")              after `import probes`: the same environments for any other agent
    probes.check_values("discount", value_fn)        its values, or its policy, beside the truth

probes/checks.md has the ladder.
"""

import importlib
from typing import TYPE_CHECKING, Any

from probes import registration

if TYPE_CHECKING:
    from probes.check import run as run
    from probes.gym import check_policy as check_policy
    from probes.gym import check_values as check_values
    from probes.ladder import LADDER as LADDER

__all__ = ["LADDER", "check_policy", "check_values", "run"]

_HOME = {
    "LADDER": "probes.ladder",
    "run": "probes.check",
    "check_values": "probes.gym",
    "check_policy": "probes.gym",
}


registration.register()


def __getattr__(name: str) -> Any:
    # Late, for jax takes a while to import.
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'probes' has no attribute {name!r}")
