"""A kernel by what it computes: ``Qwen3RMSNorm backward, modeling_qwen3.py:66``, where Inductor's own name is cut off in
the middle of its operators. Torch-free.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Modules that a title names.
MOST = 2


def title(kernel: Mapping[str, Any], direction: str) -> str:
    """What a kernel of a graph in that direction (``forward``, ``backward``) computes, and its first line; Inductor's
    name where no line of a program is known.
    """
    lines = kernel.get("lines") or ()
    if not lines:
        return str(kernel["name"])
    owners = list(
        dict.fromkeys(owner(str(line["file"]), int(line["line"]), line.get("function")) for line in lines)
    )
    names = " + ".join(owners[:MOST]) + (f" +{len(owners) - MOST}" if len(owners) > MOST else "")
    way = " backward" if direction == "backward" else ""
    return f"{names}{way}, {Path(str(lines[0]['file'])).name}:{lines[0]['line']}"


def owner(file: str, line: int, function: str | None) -> str:
    """The class whose body holds a line, else its function."""
    held = [span for span in _classes(file) if span[0] <= line <= span[1]]
    if held:
        return max(held)[2]  # the innermost begins last
    return function or Path(file).stem


@functools.lru_cache(maxsize=64)
def _classes(file: str) -> tuple[tuple[int, int, str], ...]:
    """(first line, last line, name) of every class of a file; () for one that is not here or is no Python."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
