"""What a team has decided about findings: a baseline of known ones, and comments in the source that accept one
with a reason. Torch-free.
"""

from __future__ import annotations

from cftdiag.gate.baseline import Baseline
from cftdiag.gate.expectations import Expectations
from cftdiag.gate.judge import Gate, judge
from cftdiag.gate.suppressions import Suppression, suppressions

__all__ = ["Baseline", "Expectations", "Gate", "Suppression", "judge", "suppressions"]
