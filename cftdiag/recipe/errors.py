"""What this machine cannot do, kept apart from what the model does wrong."""

from __future__ import annotations


class DepthNotReached(RuntimeError):
    """A depth cannot be reached here for a reason that is not the model's; ``left`` is the depth still
    available, or None.
    """

    def __init__(self, message: str, *, depth: str, left: str | None) -> None:
        super().__init__(message)
        self.depth = depth
        self.left = left
