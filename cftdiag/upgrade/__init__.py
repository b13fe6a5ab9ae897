"""The same check in two environments: what will break or get slower with another torch. Torch-free."""

from __future__ import annotations

from cftdiag.upgrade.checks import check_in
from cftdiag.upgrade.environment import Environment, existing, make, present, versions

__all__ = ["Environment", "check_in", "existing", "make", "present", "versions"]
