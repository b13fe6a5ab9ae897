"""What the fast-forward had to make up, said in structured records.

``planted``  a value was invented for the non-floating output of a skipped operation (an index, a mask, a
count) ``read``     an invented or assumed value left the tensor world: a Python number, a list, a size
``kernel``   an operator of a library could not run here, and only its shapes were taken
``hint``     a size that the arguments of a graph do not determine was taken from the example that was traced
"""

from __future__ import annotations

import collections
import dataclasses
import linecache
import os
import re
import sys
from typing import Any

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_REHEARSE = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "rehearse") + os.sep
#: Files whose frames only wrap a call.
_WRAPPERS = (os.sep + "typing_extensions.py", os.sep + "contextlib.py")
_MEANING = {
    "planted": "the result depends on activations or weights that are not computed; a plausible value was put in its place",
    "read": "Python read a value that depends on activations or weights that are not computed; a plausible value was given",
    "kernel": "an operator has no kernel for this machine; its shapes were taken from its fake implementation",
    "hint": "a size that the inputs do not determine was given a plausible value",
}
#: The graph node under interpretation, to name its source line; set by `graph.Graph.run`.
current_node: torch.fx.Node | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One value that was made up, and the innermost source line outside torch that asked for it."""

    what: str
    op: str
    file: str | None = None
    line: int | None = None
    function: str | None = None

    def to_dict(self, count: int) -> dict[str, Any]:
        """JSON-ready dict with the source text and an English sentence."""
        code = linecache.getline(self.file, self.line).strip() if self.file and self.line else ""
        where = {"file": self.file, "line": self.line, "function": self.function, "code": code or None}
        return {
            "what": self.what,
            "op": self.op,
            "where": where,
            "count": count,
            "meaning": _MEANING[self.what],
        }


#: How often each value was made up in this process.
EVENTS: collections.Counter[Note] = collections.Counter()


def note(what: str, op: Any) -> None:
    """Count one made-up value at the line that runs now."""
    file, line, function = _where()
    EVENTS[Note(what=what, op=str(op), file=file, line=line, function=function)] += 1


def undetermined() -> list[dict[str, Any]]:
    """All notes as JSON-ready dicts; what Python read comes first, because only that can have steered the
    program.
    """
    order = ("read", "hint", "kernel", "planted")
    notes = sorted(
        EVENTS.items(),
        key=lambda item: (order.index(item[0].what), item[0].file or "", item[0].line or 0, item[0].op),
    )
    return [found.to_dict(count) for found, count in notes]


def _where() -> tuple[str | None, int | None, str | None]:
    trace = current_node.meta.get("stack_trace") if current_node is not None else None
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace or "")
    for file, line, function in reversed(frames):
        if not file.startswith(_TORCH):
            return file, int(line), function
    return caller()


def caller() -> tuple[str | None, int | None, str | None]:
    """(file, line, function) of the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _HERE, _REHEARSE, "<")) and not file.endswith(_WRAPPERS):
            return file, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return None, None, None
