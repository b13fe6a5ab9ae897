"""A plan (``cftdiag.plan/1``) as the monitor needs it: does it foresee this compile?"""

from __future__ import annotations

import ast
import json
import operator
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.events import Event

SCHEMA = "cftdiag.plan/1"

_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class Planned:
    """The regimes of a plan and which of them this rank has compiled, by code."""

    def __init__(self, name: str, regimes: Sequence[tuple[str, tuple[ast.expr, ...]]]) -> None:
        self.name = name
        self._regimes = regimes
        self._taken: dict[Any, set[str]] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Planned:
        """Read a plan; ``ValueError`` with one line when it is none."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: cannot be read as a plan ({error}); write one with cftdiag check --plan FILE") from error
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA or not isinstance(data.get("regimes"), list):
            raise ValueError(f"{path}: not a {SCHEMA} object; write one with cftdiag check --plan FILE")
        return cls(str(path), [(str(r.get("id")), parse_bounds(r.get("bounds"))) for r in data["regimes"]])

    def foresees(self, event: Event, batch: tuple[int, int] | None) -> bool | None:
        """True when the event's (code, batch shape) falls in a regime that this rank has not compiled yet, False when in none; None without a shape.

        A recompile and the compile that follows it are one: both ask with the same compile id and get the same answer.
        """
        if batch is None:
            return None
        taken = self._taken.setdefault(event.code, set())
        for regime, bounds in self._regimes:
            key = f"{regime}@{event.compile_id}"
            if key in taken:
                return True
            if any(t.startswith(f"{regime}@") for t in taken) or not holds(bounds, batch):
                continue
            taken.add(key)
            return True
        return False


def parse_bounds(bounds: Any) -> tuple[ast.expr, ...]:
    """Bounds of a regime (a text such as ``B*S < 1280 and S % 8 == 0`` or a list of such) as expressions over ``B`` and ``S``."""
    texts = [bounds] if isinstance(bounds, str) else list(bounds or ())
    found = []
    for text in texts:
        try:
            found.append(ast.parse(re.sub(r"\s*&\s*", " and ", str(text)), mode="eval").body)
        except SyntaxError as error:
            raise ValueError(f"a regime's bounds {text!r} cannot be read; write the plan again with cftdiag check --plan FILE") from error
    return tuple(found)


def holds(bounds: Sequence[ast.expr], batch: tuple[int, int]) -> bool:
    """Whether a batch of (rows, length) is inside all bounds."""
    return all(bool(_value(bound, {"B": batch[0], "S": batch[1]})) for bound in bounds)


def _value(node: ast.expr, names: Mapping[str, int]) -> Any:
    """Evaluate arithmetic and comparisons over names, nothing else: a plan is a file that someone sent."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(v, names)) for v in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare):
        left = _value(node.left, names)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = _value(right_node, names)
            if type(op) not in _OPERATORS or not _OPERATORS[type(op)](left, right):
                return False
            left = right
        return True
    raise ValueError(f"{ast.unparse(node)!r} in a regime's bounds is neither arithmetic nor a comparison over B and S")
