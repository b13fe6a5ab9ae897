"""Which line of a stack to show: the user's or the model's own code before a library's, a library's before
torch's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cftdiag.events import Event, Frame
from cftdiag.findings import Where

_TORCH = re.compile(r"(^|/)(torch|torch/_\w+|functorch)/|<(eval_with_key|string|frozen|torch)")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[.\d]*/|\.pyenv/|<frozen|<string>")
_MODEL = re.compile(r"/transformers/(models/|integrations/|modeling\w*\.py)")
_OURS = re.compile(r"/cftdiag/(capture|check|target|monitor|cli)/")


def is_torch(frame: Frame) -> bool:
    """True for a line of torch itself."""
    file = frame.file or ""
    return bool(
        re.search(r"/site-packages/torch/|/dist-packages/torch/", file)
        or (not file.startswith("/") and _TORCH.search(file))
    )


def rank(frame: Frame) -> int:
    """0 for the user's or a model's code, 1 for another library, 2 for torch and this tool."""
    file = frame.file or ""
    if not file or is_torch(frame) or _OURS.search(file):
        return 2
    if _MODEL.search(file):
        return 0
    return 1 if _LIBRARY.search(file) else 0


def innermost(stack: Sequence[Frame], where: Callable[[Frame], bool] | None = None) -> Frame | None:
    """The innermost frame of the best rank, among those that ``where`` accepts."""
    frames = [f for f in stack if where is None or where(f)]
    if not frames:
        return None
    best = min(rank(f) for f in frames)
    return next(f for f in reversed(frames) if rank(f) == best)


def place(event: Event) -> Where:
    """The line to look at for an event: from its stack, else from the guard's own comment, else the frame
    that was compiled.
    """
    frame = innermost(event.stack)
    if frame is not None and rank(frame) < 2:
        return of(frame)
    if event.code is not None and frame is None:
        return Where(file=event.code.file, line=event.code.line, function=event.code.qualname)
    return of(frame) if frame is not None else Where()


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
    return f"{file}:{frame.line} in {frame.function}{code}"
