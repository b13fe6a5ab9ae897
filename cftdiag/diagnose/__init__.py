"""What events mean: causes, evidence, remedies. Pure functions; neither torch nor a terminal is needed."""

from __future__ import annotations

from cftdiag.diagnose.engine.cause import Cause
from cftdiag.diagnose.engine.context import Block, Context
from cftdiag.diagnose.engine.diagnose import diagnose
from cftdiag.diagnose.engine.probes import Probes
from cftdiag.diagnose.engine.registry import CAUSES

__all__ = ["CAUSES", "Block", "Cause", "Context", "Probes", "diagnose"]
