"""Public bugs of torch that compute wrong results without a word, as far as a training step can meet them.

A version alone is no finding: each advisory names a pattern that is looked for in the graph at hand and in the
code generated for it. Torch-free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cftdiag.findings import Where


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Advisory:
    """One bug."""

    issue: str
    """``pytorch#193061``"""
    url: str
    since: str
    """First torch that has it."""
    fixed: str
    """First torch without it."""
    pattern: str
    """What is looked for, as the end of a sentence."""
    workaround: str
    change: Mapping[str, Any]
    """The workaround as a change of the check's options."""


MIX_ORDER_VIEWS = Advisory(
    issue="pytorch#193061",
    url="https://github.com/pytorch/pytorch/issues/193061",
    since="2.10",
    fixed="2.15",
    pattern="a reduction fused in mixed order writes its result beside the view of a shared buffer that it belongs in",
    workaround="torch._inductor.config.triton.mix_order_reduction = False",
    change={"torch._inductor.config.triton.mix_order_reduction": False},
)

#: Every advisory by its issue.
ADVISORIES: Mapping[str, Advisory] = {a.issue: a for a in (MIX_ORDER_VIEWS,)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WrongCode:
    """One graph whose generated code has the pattern of an advisory."""

    issue: str
    compile_id: str | None
    backward: bool
    buffers: tuple[str, ...]
    """Names, in the generated code, of the results that are lost."""
    line: Where = dataclasses.field(default_factory=Where)
    """The model's line that they are computed for."""
    block: str | None = None
