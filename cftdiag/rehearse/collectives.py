"""The collectives that a rank issues outside compiled graphs, in order, so that ranks can be held against one
another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cftdiag.rehearse.settings import COLLECTIVES, Rehearsal
from cftdiag.torch_private.tracing import tree_leaves

#: Calls that are written down; a rehearsal is short, and a script without end shall not fill the disk.
MOST = 200_000
#: Operators whose sizes may differ from rank to rank.
_UNEVEN = frozenset({"alltoall_", "alltoall_base_", "barrier", "monitored_barrier_", "send", "recv_"})
#: Between two ranks only, in no common order.
_POINT_TO_POINT = frozenset({"send", "recv_", "recv_any_source_"})


class Collectives:
    """Writes one line a call: operator, ranks of its group, elements, optimizer step, the line that asked."""

    def __init__(self, settings: Rehearsal, steps: Callable[[], int]) -> None:
        self._stream = open(Path(settings.scratch) / COLLECTIVES, "w", encoding="utf-8")
        self._steps = steps
        self._left = MOST
        self._groups: dict[str, list[int]] = {}

    def called(self, func: Any, args: Sequence[Any]) -> None:
        """One operator; anything but a collective is left out."""
        if getattr(func, "namespace", "") != "c10d" or not self._left:
            return
        name = func.overloadpacket.__name__
        boxed = next((a for a in args if isinstance(a, torch.ScriptObject)), None)
        if boxed is None or name in _POINT_TO_POINT:
            return
        self._left -= 1
        elements = 0 if name in _UNEVEN else _elements(args)
        row = [name.strip("_"), self._ranks(boxed), elements, self._steps() + 1, *_where()]
        self._stream.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Nothing more is written."""
        self._stream.close()

    def _ranks(self, boxed: torch.ScriptObject) -> list[int]:
        import torch.distributed as dist

        group: Any = dist.ProcessGroup.unbox(boxed)  # type: ignore[attr-defined]
        name = group.group_name
        if name not in self._groups:
            self._groups[name] = sorted(dist.get_process_group_ranks(group))
        return self._groups[name]


def _elements(args: Sequence[Any]) -> int:
    """Elements of all tensors of a call."""
    return sum(t.numel() for t in tree_leaves(args) if isinstance(t, torch.Tensor))


def _where() -> tuple[str | None, int | None]:
    from cftdiag.fastforward.assumptions import caller

    file, line, _ = caller()
    return file, line
