"""The result of an inspection: findings, statistics, and samples for the figures."""

import dataclasses
from typing import Any

from rlref.health.findings import Finding
from rlref.inspection.random_policy import Array, Rollout


@dataclasses.dataclass
class Samples:
    """What the pictures show."""

    space: Any
    """the observation space"""
    rollout: Rollout
    returns: Array
    lengths: Array
    targets: Array
    """the discounted return from each step of each episode on"""
    explored: dict[int, Rollout]
    """action repeat -> rollout"""


@dataclasses.dataclass
class Inspection:
    """What was found about an environment."""

    env_id: str
    statistics: dict[str, Any] = dataclasses.field(default_factory=dict)
    """plain numbers, lists and dictionaries; those of a random policy are missing if it could not run"""
    findings: list[Finding] = dataclasses.field(default_factory=list)
    samples: Samples | None = None
    """None if a random policy could not run"""
