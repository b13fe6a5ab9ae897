"""What an injector says of its fault: the protocol, explained in README.md."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

STYLES = ("block", "submodule", "helper", "mixin", "decorator", "library")
"""Where a body can be put; see README.md."""
HERE = "# HERE"
"""Marks the line of a body (or of ``top``) that is at fault."""
FOLDER = Path(__file__).parent / "injectors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. README.md explains each field to somebody who writes an injector."""

    kind: str
    cause: str | tuple[str, ...]
    log: str
    body: str = ""
    top: str = ""
    init: str = ""
    setup: str = ""
    before_step: str = ""
    step: str = ""
    watch: str = ""
    shapes: Sequence[tuple[int, int]] = ((2, 12),) * 4
    compile: Mapping[str, Any] | None = None
    styles: tuple[str, ...] = STYLES
    models: tuple[str, ...] = ()
    depth: str = "any"
    lines: str = "log"
    also: tuple[tuple[str, str], ...] = ()
    advice: str = ""
    mended: Mapping[str, Any] | None = None
    alone: bool = False
    fails_eager: bool = False

    def __post_init__(self) -> None:
        for name in ("body", "top", "init", "setup", "before_step", "step", "watch"):
            object.__setattr__(self, name, textwrap.dedent(getattr(self, name)).strip("\n"))
        unknown = set(self.styles) - set(STYLES)
        if unknown:
            raise ValueError(f"unknown styles {sorted(unknown)}; there are {', '.join(STYLES)}")
        if self.lines not in ("log", "here", "block", "torch", "none"):
            raise ValueError(f"lines is {self.lines!r}; it is 'log', 'here', 'block', 'torch' or 'none'")
        if self.depth not in ("any", "all", "one"):
            raise ValueError(f"depth is {self.depth!r}; it is 'any', 'all' or 'one'")
        if self.lines == "here" and HERE not in self.body + self.top:
            raise ValueError(f"lines='here' needs {HERE} at the end of a line of body or top")
        re.compile(self.log)
        re.compile(self.advice)

    @property
    def causes(self) -> tuple[str, ...]:
        """All keys that are true of this fault."""
        return (self.cause,) if isinstance(self.cause, str) else tuple(self.cause)

    def mend(self) -> Fault | None:
        """The same program with the remedy carried out by hand."""
        return None if self.mended is None else dataclasses.replace(self, **{"lines": "block", **self.mended})


Injector = Callable[[Random], Fault]


def injectors(folder: Path = FOLDER) -> dict[str, Injector]:
    """Every injector by its file's name."""
    by_name = {}
    for path in sorted(folder.glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"tests.faults.injectors.{path.stem}", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        by_name[path.stem] = module.fault
    return by_name
