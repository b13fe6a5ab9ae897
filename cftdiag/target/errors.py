"""Why a target cannot be lowered for here."""

from __future__ import annotations


class TargetUnavailable(RuntimeError):
    """This torch or this machine cannot lower for the target. ``str(error)`` is one line: what is missing,
    then what is left.

    ``left`` names the depth that a check can still reach here.
    """

    def __init__(self, target: str, reason: str, *, left: str = "joint") -> None:
        super().__init__(
            f"cannot lower for {target} here: {reason}; depth {left} is still available (leave out --target)"
        )
        self.target, self.reason, self.left = target, reason, left
