"""What would steer a terminal is shown, not sent."""

from __future__ import annotations

import re

#: All control characters but the tab, marks that turn the direction of writing, and what UTF-8 cannot write.
STEERING = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def escaped(text: str) -> str:
    """``text`` with such characters as ``\\x1b`` and ``\\u202e``."""
    return STEERING.sub(lambda m: m.group().encode("unicode_escape").decode("ascii"), text)
