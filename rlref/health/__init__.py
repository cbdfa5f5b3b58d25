"""What metrics mean, in words: health checks, the findings that they make, and logs of other libraries.

    rlref.load("runs/mine").diagnose().findings           or: rlref diagnose runs/mine
    health.diagnose(metrics, config).findings             of any metrics `[S, U]` under rlref's names

`python -m rlref.health` prints all checks. How far they can be believed: README.md here.
"""

from rlref.health.engine import Diagnosis as Diagnosis
from rlref.health.engine import diagnose as diagnose
