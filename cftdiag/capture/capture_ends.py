"""What ended a capture: a graph break, told once although torch tells it again as it bubbles up, or an error."""

from __future__ import annotations

import traceback
from typing import Any

from cftdiag.capture import torch_texts
from cftdiag.capture.compile_state import Compile
from cftdiag.details import BreakDetail, ErrorDetail
from cftdiag.error_text import shorten
from cftdiag.events import Frame


class Reported:
    """Remembers which breaks were told.

    torch tells one break again for each restart of a compile and for each frame that it bubbles up through:
    same type, same innermost line, same block, in the same step. A frame that breaks again in a later compile
    of its own is told again: the user pays for it again.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], set[str]] = {}

    def first(self, compile_id: str, gb_type: str, stack: tuple[Frame, ...], *where: Any) -> bool:
        """True when this break is to be told; ``where`` is whatever else makes two breaks different (block,
        step).
        """
        last = stack[-1] if stack else Frame()
        seen = self._seen.setdefault((gb_type, last.file, last.line, *where), set())
        frame = _frame(compile_id)
        again = compile_id not in seen and any(_frame(told) == frame for told in seen)
        if seen and not again:
            return False
        seen.add(compile_id)
        return True


def break_detail(text: str, exception: str, state: Compile, fullgraph: bool | None) -> BreakDetail:
    """A break from the text of the break and the class of the exception behind
    it.
    """
    said = torch_texts.parse_break(text)
    operator = said.operator or ""
    return BreakDetail(
        gb_id=said.gb_id,
        gb_type=said.gb_type if said.structured or not exception else exception,
        reason=said.reason,
        explanation=said.explanation,
        hints=said.hints,
        context=said.context,
        fullgraph=fullgraph,
        operator=said.operator,
        in_checkpoint="checkpoint" in operator,
        in_autograd_function="autograd.Function" in operator or "autograd_function" in operator,
        under_checkpoint=state.under_checkpoint,
        skips_frame="falling back to eager" in text or "fall back to eager" in text,
        resumed=state.resumed,
        exception=exception or "Unsupported",
    )


def error_detail(text: str, exception: str, state: Compile) -> ErrorDetail:
    """An error: the compile failed, and not because the program cannot be captured."""
    return ErrorDetail(
        type=exception,
        message=shorten(torch_texts.message(text).strip(), 4000),
        phase="backend" if "Backend" in exception else "dynamo",
        fullgraph=state.fullgraph,
        under_checkpoint=state.under_checkpoint,
    )


def differentiated_again(error: BaseException) -> bool:
    """True when the backward in which ``error`` was raised was to have a gradient itself (``create_graph``)."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.endswith("/torch/autograd/__init__.py") and frame.f_locals.get(
            "create_graph"
        ):
            return True
    return False


def _frame(compile_id: str) -> str:
    """``0`` of ``0/3``: the code object that is compiled."""
    return compile_id.rpartition("/")[0]
