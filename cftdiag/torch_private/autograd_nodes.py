"""Which part of a forward an autograd node was made in, by the numbers that autograd gives its nodes."""

from __future__ import annotations

import bisect

from cftdiag.torch_private.names import Name

_LOST = "what is launched in backward is not told by block"

NAMES = (
    Name("torch:_C._autograd._get_sequence_nr", "kernels", _LOST),
    Name("torch:_C._current_autograd_node", "kernels", _LOST),
)


class Owners:
    """Ranges of sequence numbers, each made between a region's ``begin`` and ``end``."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._names: list[str | None] = []
        self._open: list[str] = []

    def begin(self, name: str) -> None:
        """A region's forward begins."""
        self._open.append(name)
        self._mark(name)

    def end(self, name: str) -> None:
        """It ends; what comes belongs to the region around it."""
        self._open.pop()
        self._mark(self._open[-1] if self._open else None)

    def _mark(self, name: str | None) -> None:
        import torch

        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._names.append(name)

    def current(self) -> str | None:
        """The region whose forward made the node that runs now; None outside of a backward and of a region."""
        import torch

        node = torch._C._current_autograd_node()
        if node is None:
            return None
        return self.owner(node._sequence_nr())

    def owner(self, number: int) -> str | None:
        """The region that made the node with this number. A recomputation starts its ranges later, so the last
        range that begins at or before the number is asked.
        """
        found = bisect.bisect_right(self._starts, number) - 1
        return self._names[found] if found >= 0 else None
