"""What events mean: causes, evidence, remedies. Pure functions; neither torch nor a terminal is needed."""

from __future__ import annotations

from cftdiag.diagnose.cause import Cause
from cftdiag.diagnose.context import Block, Context
from cftdiag.diagnose.engine import diagnose
from cftdiag.diagnose.registry import CAUSES

__all__ = ["CAUSES", "Block", "Cause", "Context", "diagnose"]
