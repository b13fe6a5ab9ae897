"""Numbers and guards as Python expressions over ``B`` (batch size) and ``S`` (length). Pure; evaluates ints
exactly and arrays at once.

A dimension of a block's argument is *fitted*: the simplest formula that explains it for every shape seen. A
guard is *translated*: each source it names (``L['x'].size()[1]``) is replaced by its formula.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np

from cftdiag import guards

#: Multiples up to which masks and buffers are commonly rounded.
_ROUNDINGS = (8, 16, 32, 64, 128, 256)
#: Chunks that a row is commonly cut into.
_MOST_CHUNKS = 64
#: A number of the shape (batch, length): (batch size, length, value met).
Sample = tuple[int, int, int]


class Untranslatable(ValueError):
    """A guard, or a part of it, that has no expression over B and S."""


@dataclasses.dataclass(frozen=True, slots=True)
class Formula:
    """A number that follows batch size and length; ``text`` is Python over B and S, such as ``64*S``."""

    text: str

    def at(self, batch: Any, length: Any) -> Any:
        """Its value for ints, or for arrays of equal shape."""
        return evaluate(self.text, batch, length)

    @property
    def constant(self) -> int | None:
        """The value of a formula that follows nothing."""
        return int(self.text) if self.text.lstrip("-").isdigit() else None


def evaluate(text: str, batch: Any, length: Any) -> Any:
    """Value of an expression over B and S made here (not of foreign text: see :func:`translate`)."""
    return eval(
        _code(text), _NUMERIC, {"B": batch, "S": length}
    )  # only texts composed by this module reach it


@functools.lru_cache(maxsize=16384)
def _code(text: str) -> CodeType:
    return compile(text, "<formula>", "eval")


def _min(*values: Any) -> Any:
    return (
        functools.reduce(np.minimum, values)
        if any(isinstance(v, np.ndarray) for v in values)
        else min(values)
    )


def _max(*values: Any) -> Any:
    return (
        functools.reduce(np.maximum, values)
        if any(isinstance(v, np.ndarray) for v in values)
        else max(values)
    )


def _not(value: Any) -> Any:
    return np.logical_not(value) if isinstance(value, np.ndarray) else not value


def _floor(value: Any) -> Any:
    return np.floor(value) if isinstance(value, np.ndarray) else math.floor(value)


def _ceil(value: Any) -> Any:
    return np.ceil(value) if isinstance(value, np.ndarray) else math.ceil(value)


_NUMERIC = {
    "__builtins__": {},
    "min": _min,
    "max": _max,
    "Not": _not,
    "Eq": operator.eq,
    "Ne": operator.ne,
    "floor": _floor,
    "ceiling": _ceil,
    "abs": abs,
}


# ---- fitting ----


def fit(samples: Sequence[Sample]) -> Formula | None:
    """The simplest formula for all samples; None when none is known that explains them.

    Tried in order: a constant, a multiple of S, B, B*S or S*S, a quotient, a rounding, a multiple of a quotient, a
    bound, a linear function. A formula with free numbers must explain at least one sample more than it has numbers, so that
    it is confirmed and not only drawn through the points; with a single distinct shape a constant is all that
    can be said.
    """
    points = sorted(set(samples))
    if not points:
        return None
    distinct = len({(b, s) for b, s, _ in points})
    if distinct < len(points):
        return None
    for text, numbers in _candidates(points):
        if (distinct > numbers or distinct == 1) and all(evaluate(text, b, s) == v for b, s, v in points):
            return Formula(text)
    return None


def _candidates(points: Sequence[Sample]) -> Iterator[tuple[str, int]]:
    """(expression, free numbers it took from the points)."""
    b, s, v = points[-1]
    yield str(v), 1
    monomials = {"S": s, "B": b, "B*S": b * s, "S*S": s * s, "B*S*S": b * s * s}
    for name, value in monomials.items():
        if value == v:
            yield name, 0
    for name, value in monomials.items():
        if v and v % value == 0:
            yield f"{v // value}*{name}", 1
    for name, value in monomials.items():
        for divisor in {value // v, -(-value // v)} if 0 < v < value else ():
            yield f"{name} // {divisor}", 1
            yield f"-(-{name} // {divisor})", 1
    for multiple in _ROUNDINGS:
        for name in ("S", "B*S"):
            yield f"-(-{name} // {multiple})*{multiple}", 1
    # where a later one of equal chunks begins
    for name in ("S", "B*S"):
        for chunks in range(2, _MOST_CHUNKS + 1):
            for quotient, text in (
                (-(-monomials[name] // chunks), f"-(-{name} // {chunks})"),
                (monomials[name] // chunks, f"({name} // {chunks})"),
            ):
                if quotient and v > quotient and v % quotient == 0:
                    yield f"{v // quotient}*{text}", 2
    # what min(S, n) and max(S, n) have in common with the largest and smallest value met
    values = [value for _, _, value in points]
    yield f"min(S, {max(values)})", 1
    yield f"max(S, {min(values)})", 1
    for name in monomials:
        yield from _linear(name, points)


def _linear(name: str, points: Sequence[Sample]) -> Iterator[tuple[str, int]]:
    xs = [evaluate(name, b, s) for b, s, _ in points]
    low, high = min(range(len(xs)), key=xs.__getitem__), max(range(len(xs)), key=xs.__getitem__)
    if xs[low] == xs[high]:
        return
    slope, rest = divmod(points[high][2] - points[low][2], xs[high] - xs[low])
    if rest or not slope:
        return
    offset = points[low][2] - slope * xs[low]
    yield f"{slope}*{name} + {offset}" if slope != 1 else f"{name} + {offset}", 2 if slope != 1 else 1


# ---- translating ----

_COMPARE: Mapping[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_BINARY: Mapping[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Div: "/",
    ast.Pow: "**",
}
#: Functions that guards use, torch's and sympy's names for them -> the name here.
_CALLS = {
    **{"min": "min", "Min": "min", "max": "max", "Max": "max", "abs": "abs", "Abs": "abs"},
    **{
        "math.floor": "floor",
        "floor": "floor",
        "math.trunc": "floor",
        "int": "floor",
        "math.ceil": "ceiling",
        "ceiling": "ceiling",
    },
}
_OPERATOR_CALLS = {
    "Eq": "==",
    "Ne": "!=",
    "Lt": "<",
    "Le": "<=",
    "Gt": ">",
    "Ge": ">=",
    "FloorDiv": "//",
    "Mod": "%",
    "PythonMod": "%",
}

#: Guards that ask which object, type or part a value is: they follow no shape.
_ASKS = frozenset(
    {"identity", "type", "tensor_type", "attribute", "contains", "keys", "alias", "state", "marking"}
)

Resolve = Callable[[str], float | None]


def translate(guard: str, sources: Mapping[str, str], resolve: Resolve | None = None) -> list[str]:
    """A guard's conditions as expressions over B and S, all of which must hold; [] for a guard that does not
    follow the shape.

    ``sources`` maps a source (``L['x'].size()[1]``) to its formula's text. ``resolve`` gives the value of a
    source outside of them (a module's number), or None. Raises :class:`Untranslatable` for a guard that
    follows the shape in a way that has no expression here.
    """
    tensor = guards.tensor_check(guard)
    if tensor is not None:
        return _tensor(tensor, sources)
    if not mentions(guard, sources) or guards.read(guard).kind in _ASKS:
        return []
    try:
        tree = ast.parse(guard.strip(), mode="eval").body
    except SyntaxError as error:
        raise Untranslatable(guard) from error
    writer = _Writer(sources, resolve or (lambda source: None))
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    return [atom for part in parts for atom in writer.conjuncts(part)]


def mentions(guard: str, sources: Mapping[str, str]) -> bool:
    """True when a guard names one of the sources."""
    return any(source in guard for source in sources)


def _tensor(check: guards.TensorCheck, sources: Mapping[str, str]) -> list[str]:
    atoms = []
    for what, numbers in (("size", check.size), ("stride", check.stride)):
        for i, number in enumerate(numbers):
            formula = sources.get(f"{check.source}.{what}()[{i}]")
            if formula is not None and number is not None:
                atoms.append(f"Eq({formula}, {number})")
    return atoms


class _Writer:
    """Writes an expression tree as Python over B and S."""

    def __init__(self, sources: Mapping[str, str], resolve: Resolve) -> None:
        self.sources, self.resolve = sources, resolve

    def conjuncts(self, node: ast.expr) -> list[str]:
        if not isinstance(node, ast.Compare):
            return [self.write(node)]
        sides = [node.left, *node.comparators]
        return [
            self.compare(operator_, a, b) for operator_, a, b in zip(node.ops, sides, sides[1:], strict=False)
        ]

    def compare(self, op: ast.cmpop, a: ast.expr, b: ast.expr) -> str:
        left, right = self.write(a), self.write(b)
        if isinstance(op, (ast.Eq, ast.Is)):
            return f"Eq({left}, {right})"
        if isinstance(op, (ast.NotEq, ast.IsNot)):
            return f"Ne({left}, {right})"
        if type(op) not in _COMPARE:
            raise Untranslatable(ast.unparse(a))
        return f"({left} {_COMPARE[type(op)]} {right})"

    def write(self, node: ast.expr) -> str:
        if isinstance(node, (ast.Subscript, ast.Attribute, ast.Name, ast.Call)):
            source = ast.unparse(node)
            if source in self.sources:
                return f"({self.sources[source]})"
            if isinstance(node, ast.Call):
                return self.call(node, source)
            return self.outside(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return repr(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return f"({self.write(node.left)} {_BINARY[type(node.op)]} {self.write(node.right)})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"(-{self.write(node.operand)})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"Not({self.write(node.operand)})"
        if isinstance(node, ast.BoolOp):
            return (
                "("
                + (" & " if isinstance(node.op, ast.And) else " | ").join(self.write(v) for v in node.values)
                + ")"
            )
        if isinstance(node, ast.Compare):
            return "(" + " & ".join(self.conjuncts(node)) + ")"
        raise Untranslatable(ast.unparse(node))

    def call(self, node: ast.Call, source: str) -> str:
        name = ast.unparse(node.func)
        if name in _OPERATOR_CALLS and len(node.args) == 2 and not node.keywords:
            a, b = map(self.write, node.args)
            op = _OPERATOR_CALLS[name]
            return f"{name}({a}, {b})" if op in ("==", "!=") else f"({a} {op} {b})"
        if name in _CALLS and not node.keywords:
            return f"{_CALLS[name]}({', '.join(map(self.write, node.args))})"
        if name == "float" and len(node.args) == 1:
            return self.write(node.args[0])
        return self.outside(source)

    def outside(self, source: str) -> str:
        value = None if mentions(source, self.sources) else self.resolve(source)
        if value is None:
            raise Untranslatable(source)
        return f"({int(value)})" if isinstance(value, (bool, int)) else repr(float(value))
