"""Level 0: checks that need no training, or one update of it.

Those over the contract run for every agent of their kind. Those over a function of the agent's file run where there is
one of that name with those parameters, and are reported as not checked where it has not; probes/checks.md lists them.

They are asked in the order in which they are registered: functions first, for what they find is nearest to the fault.
"""

# isort: off
from probes.oracles import ppo, dqn, cem, shared, contract, exact_ppo, exact_dqn, exact_cem  # noqa: F401
from probes.oracles.base import ORACLES, CannotAskError, Oracle, missing, settings_in
from probes.oracles.memory import MEMORY_ORACLES

__all__ = ["MEMORY_ORACLES", "ORACLES", "CannotAskError", "Oracle", "missing", "settings_in"]
