"""Recompiles by torch's global state."""

from __future__ import annotations

from cftdiag.conditions import Condition
from cftdiag.diagnose.engine.cause import RECOMPILES, cause
from cftdiag.diagnose.engine.miss import Miss
from cftdiag.findings import Remedy

CAUSES = (
    cause(
        "grad_mode",
        says="The code was compiled with gradients {expected} and is called with them {actual}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Expected with evaluation: warm the no_grad variant up before training and switch eval() and no_grad() together."
            ),
            Remedy(summary="Run evaluation eager: torch.compiler.set_stance('force_eager') around it."),
        ),
    ),
    cause(
        "global_state",
        says="torch's global state differs from when the code was compiled: {state}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Set {setting} once before the first compiled call, the same for every call of the block."
            ),
        ),
    ),
)


def classify(miss: Miss) -> str | None:
    """The cause of a miss by global state, or None."""
    if miss.guard.kind != "state":
        return None
    return "grad_mode" if "grad_mode" in str(miss.guard.key) else "global_state"


def changed(guard: Condition) -> str:
    """``autocast(cpu)_enabled`` of ``GLOBAL_STATE changed: autocast(cpu)_enabled``."""
    return ", ".join(str(guard.key).split()) or "another function mode is active"


def setting(guard: Condition) -> str:
    """What to set once: the names of what changed, or the function mode, for which torch has none."""
    return ", ".join(str(guard.key).split()) or "the function mode"
