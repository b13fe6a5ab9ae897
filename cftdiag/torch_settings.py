"""Settings of torch that remedies make and that only some releases have. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

#: A remedy with one of them is offered where the torch that runs has it.
SOME_RELEASES = (
    "torch.compiler.config.static_sources",
    "torch.compiler.config.compile_on_one_rank",
    "torch._functorch.config._sync_cache_decision_cross_ranks",
    "torch._inductor.config.numerics",
)


def offered(change: Mapping[str, Any] | None, there: Collection[str]) -> bool:
    """False for a change of a setting that this torch lacks. ``there``: those of :data:`SOME_RELEASES` that it has."""
    return all(name in there for name in change or () if name in SOME_RELEASES)
