"""One line of a Python stack."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One line of a Python stack, in the user's, the model's or a library's code."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    """The source line, stripped."""
