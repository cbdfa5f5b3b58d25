"""Diagnosing runs from their metrics: health checks, their findings, and readers for logs of other libraries.

    rlref.load("runs/mine").diagnose().findings           or: rlref diagnose runs/mine
    health.diagnose(metrics, config).findings             of any metrics `[S, U]` under rlref's names

`python -m rlref.health` prints all checks. calibration.md here has their rates of false alarms and of detection.
"""

from rlref.health.engine import Diagnosis as Diagnosis
from rlref.health.engine import diagnose as diagnose
