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
    fixed: str | None
    """First torch without it; None while it is open."""
    pattern: str
    """What is looked for, as the end of a sentence."""
    workaround: str
    change: Mapping[str, Any] | None
    """The workaround as a change of the check's options; None where the model has to be changed."""


MIX_ORDER_VIEWS = Advisory(
    issue="pytorch#193061",
    url="https://github.com/pytorch/pytorch/issues/193061",
    since="2.10",
    fixed="2.15",
    pattern="a reduction fused in mixed order writes its result beside the view of a shared buffer that it belongs in",
    workaround="torch._inductor.config.triton.mix_order_reduction = False",
    change={"torch._inductor.config.triton.mix_order_reduction": False},
)

RANDOM_IN_FOURS = Advisory(
    issue="pytorch#198333",
    url="https://github.com/pytorch/pytorch/issues/198333",
    since="2.13",
    fixed=None,
    pattern="random numbers are drawn four at a time for neighbouring elements, but this kernel goes through them in another "
    "order (the input of the dropout is transposed and made contiguous in the same kernel): elements share their "
    "numbers, and a recomputation draws others",
    workaround="torch._inductor.config.fallback_random = True, which draws as eager does, in a kernel of its own",
    change={"torch._inductor.config.fallback_random": True},
)

SCATTER_ON_EXPANDED = Advisory(
    issue="pytorch#180164",
    url="https://github.com/pytorch/pytorch/issues/180164",
    since="2.11",
    fixed="2.13",
    pattern="a slice, a row or a diagonal is written into an expanded tensor, such as the gradient of a sum, whose strides of 0 "
    "the result takes over (the same bug as pytorch#182012 and pytorch#180771)",
    workaround="Write into a new tensor: torch.where with a mask, or torch.cat of the parts, instead of the scatter",
    change=None,
)

#: Every advisory by its issue.
ADVISORIES: Mapping[str, Advisory] = {
    a.issue: a for a in (MIX_ORDER_VIEWS, RANDOM_IN_FOURS, SCATTER_ON_EXPANDED)
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WrongCode:
    """One graph whose generated code has the pattern of an advisory."""

    issue: str
    compile_id: str | None
    backward: bool
    buffers: tuple[str, ...]
    """Names, in the generated code, of the results that are wrong."""
    line: Where = dataclasses.field(default_factory=Where)
    """The model's line that they are computed for."""
    block: str | None = None
