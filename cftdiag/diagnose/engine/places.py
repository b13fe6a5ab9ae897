"""Which line of a stack to show: the innermost line of the user's, the model's or a library's code inside the
compiled frame. Who called that frame is evidence; torch's own lines, Python's standard library and this tool
are shown only where nothing else is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cftdiag.events import RESUME, Code, Event, Frame
from cftdiag.findings import Where

_TORCH = re.compile(r"(^|/)(torch|torch/_\w+|functorch)/|<(eval_with_key|string|frozen|torch)")
_TORCH_INSTALLED = re.compile(r"/(?:site|dist)-packages/(?:torch|torchgen|functorch|triton)/")
_LIBRARY = re.compile(r"/(site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(
    r"/lib/python3[.\d]*/(?!(site|dist)-packages/)|\.pyenv/(?!.*-packages/)|<frozen|<string>"
)
_MODEL = re.compile(r"/transformers/(models/|integrations/|modeling\w*\.py)")
_OURS = str(Path(__file__).parents[2]) + "/"
_EXAMPLES = str(Path(__file__).parents[1] / "causes" / "examples") + "/"
_RESUMED = re.compile(RESUME + r"(\w+?)_at_\d+")


def is_torch(frame: Frame) -> bool:
    """True for a line of torch itself."""
    file = frame.file or ""
    return bool(_TORCH_INSTALLED.search(file) or (not file.startswith("/") and _TORCH.search(file)))


def rank(frame: Frame) -> int:
    """0 for the user's or a model's code, 1 for another library, 2 for torch, Python's standard library and
    this tool.
    """
    file = frame.file or ""
    if not file or is_torch(frame) or (file.startswith(_OURS) and not file.startswith(_EXAMPLES)):
        return 2
    if _MODEL.search(file):
        return 0
    if _LIBRARY.search(file):
        return 1
    return 2 if _STANDARD_LIBRARY.search(file) else 0


def installed(file: str) -> bool:
    """True for a file of an installed package, which its user does not edit."""
    return bool(_LIBRARY.search(file))


def innermost(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's, the model's or a library's code, else the innermost of all."""
    return next((f for f in reversed(stack) if rank(f) < 2), stack[-1] if stack else None)


def split(event: Event) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
    """(callers, frames of the compiled function and of what it calls), outermost first; no callers where the
    compiled function is not on the stack.
    """
    start = _start(event.stack, event.code)
    return (event.stack[:start], event.stack[start:]) if start is not None else ((), event.stack)


def site(event: Event) -> Frame | None:
    """The line of an event: the innermost inside the compiled frame; its nearest caller where only torch's own
    lines are inside (a compiled optimizer).
    """
    callers, inside = split(event)
    frame = innermost(inside)
    if frame is None or rank(frame) < 2:
        return frame
    caller = innermost(callers)
    return caller if caller is not None and rank(caller) < 2 else frame


def caller(event: Event) -> Frame | None:
    """The nearest line of the user's, the model's or a library's code that called the compiled frame."""
    frame = innermost(split(event)[0])
    return frame if frame is not None and rank(frame) < 2 else None


def place(event: Event) -> Where:
    """The line to look at for an event: from its stack, else the frame that was compiled."""
    frame = site(event)
    if frame is not None:
        return of(frame)
    if event.code is not None:
        return Where(file=event.code.file, line=event.code.line, function=event.code.qualname)
    return Where()


def of(frame: Frame) -> Where:
    """A frame as the place of a finding; torch's comment behind a source line is cut off."""
    return Where(
        file=frame.file,
        line=frame.line,
        function=frame.function,
        code=frame.code and frame.code.split("  # ")[0],
    )


def show(frame: Frame) -> str:
    """``file.py:12 in forward: x = y`` with the file's last two parts."""
    file = "/".join((frame.file or "?").split("/")[-2:])
    code = f": {frame.code}" if frame.code else ""
    return f"{file}:{frame.line} in {function(frame)}{code}"


def named(where: Where) -> str:
    """What a sentence calls a line: its code, else its file and number, else its function."""
    if where.code:
        return where.code
    if where.file:
        return f"{where.file.rpartition('/')[2]}:{where.line}" if where.line else where.file
    return where.function or "the compiled code"


def function(frame: Frame) -> str:
    """Name of a frame's function; a resumed function counts as the function that it resumes."""
    found = _RESUMED.search(frame.function or "")
    return found[1] if found else (frame.function or "")


def _start(stack: Sequence[Frame], code: Code | None) -> int | None:
    """Index of the compiled function on the stack: of the functions of that file and name the one that starts
    at its first line, so the one whose line is nearest behind it.
    """
    if code is None:
        return None
    found = _RESUMED.search(code.qualname)
    name = found[1] if found else code.qualname.rpartition(".")[2]
    behind = [
        ((f.line or 0) - code.line, i)
        for i, f in enumerate(stack)
        if f.file == code.file and function(f) == name and (f.line or 0) >= code.line
    ]
    return min(behind)[1] if behind else None
