"""All health checks, in the order in which they are made and listed.

The checks are from the talks and papers in which they stand; where the source is "rlref", the threshold comes from
`scripts/calibrate_verdicts.py`, which measures how far the checks can be believed.
"""

# Importing a file registers its checks.
from rlref.health.registry import CHECKS

from rlref.health.checks import bookkeeping as bookkeeping  # isort: skip
from rlref.health.checks import rewards as rewards  # isort: skip
from rlref.health.checks import updates as updates  # isort: skip
from rlref.health.checks import critic as critic  # isort: skip
from rlref.health.checks import policy as policy  # isort: skip
from rlref.health.checks import search as search  # isort: skip
from rlref.health.checks import memory as memory  # isort: skip
from rlref.health.checks import outcome as outcome  # isort: skip


def markdown() -> str:
    """All checks as a table, as it stands in rlref/health/checks.md."""
    lines = ["| check | severity | of | lasts | what it means | try | source |", "|---|---|---|---|---|---|---|"]
    for one in CHECKS.values():
        lasts = "one update" if one.window == 0 else f"{one.share:.0%} of {one.window:.0%} of the training"
        kinds = ", ".join(map(str.upper, one.kinds))
        lines.append(
            f"| `{one.name}` | {one.severity} | {kinds} | {lasts} | {one.meaning} | {one.tries} | {one.source} |"
        )
    return "\n".join(lines)
