"""The table of all private names, and what this torch has of it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable

from cftdiag.torch_private.names import Name, Part

#: Modules of this package that declare names.
SUBJECTS = (
    "trace_log", "compile_frame", "callbacks", "guard_tree", "compiled_call", "wrappers", "objects", "dynamo",
    "tracing", "autograd_nodes", "operators", "world", "inductor", "points", "rehearsal", "cache_artifacts",
)  # fmt: skip

#: Depths of the check, each with the parts that it needs beside those of the depths before it.
DEPTHS: tuple[tuple[str, tuple[Part, ...]], ...] = (
    ("trace", ("record", "trace")),
    ("joint", ("joint",)),
    ("codegen", ("codegen for the CPU",)),
)
#: What a check reaches unless it is asked for more, and the parts that it needs for that.
DEFAULT_DEPTH = "joint"
NEEDED_PARTS: frozenset[Part] = frozenset({"record", "trace", "joint"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One name as this torch has it; ``detail`` says what is wrong, and what is lost."""

    point: str
    part: str
    ok: bool
    needed: bool
    detail: str

    @property
    def broken(self) -> bool:
        """True when what the name serves cannot work without it."""
        return self.needed and not self.ok


def names() -> tuple[Name, ...]:
    """Every private name of torch that is used."""
    modules = (importlib.import_module(f"{__package__}.{subject}") for subject in SUBJECTS)
    return tuple(name for module in modules for name in module.NAMES)


def probe(wanted: Iterable[Name] | None = None) -> list[Row]:
    """Look every name up in this torch; by default the whole table. Compiles nothing."""
    rows = []
    for name in names() if wanted is None else wanted:
        wrong = name.check()
        detail = name.differs if wrong is None else f"{wrong}: {name.lost}"
        rows.append(
            Row(point=name.point, part=name.part, ok=wrong is None, needed=name.needed, detail=detail)
        )
    return rows


def depth_available(broken: frozenset[str] | set[str]) -> str | None:
    """The deepest depth that needs none of the ``broken`` parts, nor does a depth before it; None for no
    depth.
    """
    reached = None
    for depth, parts in DEPTHS:
        if not broken.isdisjoint(parts):
            break
        reached = depth
    return reached
