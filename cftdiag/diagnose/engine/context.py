"""What the diagnosis knows beside the events: the blocks, the data's own dimensions, and facts found by
behaviour.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cftdiag.diagnose.engine.probes import Probes
from cftdiag.events import Event


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block that is meant to be compiled."""

    fqn: str
    cls: str
    kind: str
    """Label shared by structurally equal blocks."""
    index: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What was checked or run; every field may stay at its default, the diagnosis then falls back to the
    events alone.
    """

    blocks: Sequence[Block] = ()
    lengths: Sequence[int | None] = ()
    """Sequence length by step, the first step first."""
    batch_sizes: Sequence[int | None] = ()
    """Rows by step, the first step first."""
    graphs: Mapping[str, int] | None = None
    """Number of compiled graphs that each block ran."""
    ran: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Compile ids of the graphs that each block ran: a block that ran an entry and missed it at another time
    met a change in time.
    """
    fullgraph: Mapping[str, bool | None] = dataclasses.field(default_factory=dict)
    """Whether ``fullgraph=True`` captured the block; None or absent when that was not tried."""
    fullgraph_breaks: Sequence[Event] = ()
    """The graph breaks (and errors) of the fullgraph pass."""
    wrap: bool = False
    """The subject compiles itself: no fullgraph pass, every break counts."""
    ac: str = "none"
    scope: str = "block"
    depth: str = "joint"
    limit: int = 8
    compile_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Collection[str] = ()
    """Those of :data:`cftdiag.torch_settings.SOME_RELEASES` that this torch has."""
    probes: Probes = dataclasses.field(default_factory=Probes)
    """What no event of torch tells, found by watching behaviour."""

    def block(self, fqn: str | None) -> Block | None:
        """The block of that name, or the block that holds a module of that name."""
        if fqn is None:
            return None
        for block in self.blocks:
            if fqn == block.fqn or fqn.startswith(block.fqn + "."):
                return block
        return None

    def index(self, fqn: str | None) -> int | None:
        """Position of a block: its own index where known, else the last number of its name."""
        block = self.block(fqn)
        if block is not None:
            return block.index
        found = re.findall(r"\.(\d+)(?:\.|$)", fqn or "")
        return int(found[-1]) if found else None

    def same_kind(self, fqn: str | None) -> tuple[str, ...]:
        """Names of the blocks that are structurally equal to this one, itself included."""
        block = self.block(fqn)
        if block is None:
            return (fqn,) if fqn else ()
        return tuple(b.fqn for b in self.blocks if b.kind == block.kind)

    def length_at(self, step: int) -> int | None:
        """Length of the batch of a step (1-based; 0, the warm-up, counts as the first)."""
        return _at(self.lengths, step)

    def batch_size_at(self, step: int) -> int | None:
        """Rows of the batch of a step (1-based; 0, the warm-up, counts as the first)."""
        return _at(self.batch_sizes, step)

    def shorten(self, fqns: Iterable[str]) -> tuple[str, ...]:
        """Names as a report shows them: ``layers.*`` when every block under that name is meant, else the
        names in order.
        """
        names = list(dict.fromkeys(fqns))
        out: list[str] = []
        known = [b.fqn for b in self.blocks]
        for name in names:
            glob = re.sub(r"(^|\.)\d+$", r"\1*", name)
            family = [
                k for k in known if fnmatch.fnmatchcase(k, glob) and re.sub(r"(^|\.)\d+$", r"\1*", k) == glob
            ]
            if glob != name and len(family) > 1 and set(family) <= set(names):
                name = glob
            if name not in out:
                out.append(name)
        return tuple(out)


def _at(values: Sequence[int | None], step: int) -> int | None:
    index = max(step - 1, 0)
    return values[index] if index < len(values) else None
