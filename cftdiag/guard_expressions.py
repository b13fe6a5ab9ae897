"""Guards that are Python: an expression's tree -> :class:`~cftdiag.conditions.Condition`."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from cftdiag.conditions import MISSING, Code, Condition, Form, Kind, Term

#: Attributes that tensors have for marked dimensions.
_MARKS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
    "_dynamo_static_indices",
)
#: sympy's and torch's spellings of an operator.
_OPERATORS: dict[str, type[ast.cmpop]] = {
    "Eq": ast.Eq,
    "Ne": ast.NotEq,
    "Lt": ast.Lt,
    "Le": ast.LtE,
    "Gt": ast.Gt,
    "Ge": ast.GtE,
}
_MOD = ("Mod", "PythonMod")
_MIRROR: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
_TERMS: tuple[Literal["size", "stride", "storage_offset"], ...] = ("size", "stride", "storage_offset")
_BASES = ("int", "float", "str", "bool", "complex", "bytes")


def expression(text: str) -> Condition | None:
    """Read a guard that is a Python expression; None for what is none."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = _read(tree, text)
    return None if found is None else dataclasses.replace(found, text=text)


def _read(node: ast.expr, text: str) -> Condition | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _not(node.operand, text)
    if isinstance(node, ast.BoolOp):
        read = [found for value in node.values if (found := _read(value, text)) is not None]
        # (type(k) is float and __math_isnan(k)): the last part is the test, what is before it guards it
        return next((found for found in read if found.terms), read[-1] if read else None)
    if isinstance(node, ast.IfExp):
        return _marking(node, text)
    if isinstance(node, ast.Call):
        return _call(node, text)
    if isinstance(node, ast.Compare):
        return _compare(node, text)
    return None


def _not(node: ast.expr, text: str) -> Condition | None:
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return Condition(text=text, kind="length", source=ast.unparse(node), expected=0)
    found = _read(node, text)
    return None if found is None else dataclasses.replace(found, negated=not found.negated)


def _marking(node: ast.expr, text: str) -> Condition | None:
    """``(getattr(x, '_dynamo_dynamic_indices', set()).issubset({1})) if hasattr(x, ...) else True``."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and _name(n) in ("hasattr", "getattr")]
    if not calls or not _constant(calls[0].args[1]):
        return None
    return Condition(text=text, kind="marking", source=ast.unparse(calls[0].args[0]))


def _call(node: ast.Call, text: str) -> Condition | None:
    name, args = _name(node), node.args
    if name in _OPERATORS and len(args) == 2:
        return _compare(ast.Compare(left=args[0], ops=[_OPERATORS[name]()], comparators=[args[1]]), text)
    if name == "hasattr" and len(args) == 2:
        attribute = _value(args[1])
        source = ast.unparse(args[0])
        if attribute in _MARKS:
            return Condition(text=text, kind="marking", source=source)
        return Condition(text=text, kind="attribute", source=f"{source}.{attribute}")
    if name == "___dict_contains" and len(args) == 2:
        holder = args[1]
        if isinstance(holder, ast.Attribute) and holder.attr == "__dict__":
            source = f"{ast.unparse(holder.value)}.{_value(args[0])}"
            return Condition(text=text, kind="attribute", source=source)
        return Condition(text=text, kind="contains", source=ast.unparse(holder), key=_value(args[0]))
    if name.endswith(".__contains__") and len(args) == 2:
        return Condition(text=text, kind="contains", source=ast.unparse(args[0]), key=_value(args[1]))
    if name == "isinstance" and len(args) == 2:
        return Condition(text=text, kind="type", source=ast.unparse(args[0]), expected=_value(args[1]))
    if name == "__math_isnan" and args:
        return Condition(text=text, kind="value", source=ast.unparse(args[0]), expected=float("nan"))
    if name == "check_no_aliasing":
        return Condition(text=text, kind="alias", source=ast.unparse(args[0]) if args else "", negated=True)
    return None


def _compare(node: ast.Compare, text: str) -> Condition | None:
    left, op, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(op, (ast.Is, ast.IsNot)):
        negated = isinstance(op, ast.IsNot)
        if isinstance(right, ast.Constant) and right.value is None:
            expected = MISSING if negated else None
            return Condition(
                text=text, kind="none", source=ast.unparse(left), negated=negated, expected=expected
            )
        return Condition(text=text, kind="alias", source=ast.unparse(left), negated=negated)
    if isinstance(op, (ast.In, ast.NotIn)):
        negated = isinstance(op, ast.NotIn)
        terms = tuple(_terms(left))
        if _constant(right) and terms:
            return _numbers(node, terms, text)  # x.size()[1] in (3, 4)
        return Condition(
            text=text, kind="contains", source=ast.unparse(right), negated=negated, key=_value(left)
        )
    terms = tuple(_terms(node))
    numeric = any(term.what != "value" for term in terms) or not _plain(node)
    if numeric and terms:
        return _numbers(node, terms, text)
    return _plain_comparison(left, op, right, text)


def _plain_comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, text: str) -> Condition | None:
    """One source against one value."""
    negated, expected = isinstance(op, ast.NotEq), _value(right)
    kind: Kind = "value"
    source: ast.expr = left
    if isinstance(left, ast.Subscript) and isinstance(left.value, ast.Call) and _name(left.value) == "list":
        left = left.value
    if isinstance(left, ast.Call):
        name, inner = _name(left), left.args[0] if left.args else None
        method = left.func if isinstance(left.func, ast.Attribute) else None
        if inner is not None and name in ("len", "___tuple_iterator_len"):
            kind, source = "length", inner
        elif inner is not None and name == "list" and isinstance(inner, ast.Call):
            # list(dict.keys(d)) == [...], list(d.keys()) == [...]
            keyed = inner.func if isinstance(inner.func, ast.Attribute) else None
            kind, source = "keys", inner.args[0] if inner.args else (keyed.value if keyed else inner)
        elif inner is not None and name == "___dict_version":
            kind, source = "keys", inner
        elif inner is not None and name == "str" and isinstance(inner, ast.Attribute):
            kind, source = ("device" if inner.attr == "device" else "dtype"), inner.value
            expected = Code(str(expected).removeprefix("torch."))
        elif inner is not None and name in (*_BASES, "___normalize_range_iter", "___normalize_count_iter"):
            source = inner
        elif inner is not None and name in ("hasattr", "getattr"):
            found = _call(left, text)
            return None if found is None else dataclasses.replace(found, negated=expected is False)
        elif method is not None and method.attr in ("ndimension", "dim"):
            kind, source = "rank", method.value
        elif method is not None and method.attr == "raw_repr":
            kind, source = "dispatch", method.value
    elif isinstance(left, ast.Constant):
        source, expected = right, _value(left)
    elif isinstance(left, ast.Attribute) and left.attr == "requires_grad" and isinstance(expected, bool):
        kind, source = "requires_grad", left.value
    return Condition(text=text, kind=kind, source=ast.unparse(source), negated=negated, expected=expected)


# ---- expressions over numbers ----


def _numbers(node: ast.Compare, terms: tuple[Term, ...], text: str) -> Condition:
    form, facts = _form(node)
    kinds = {term.what for term in terms}
    first = next((t for t in terms if t.what != "value"), terms[0])
    kind: Kind = "value"
    if "stride" in kinds:
        kind, first = "stride", next(t for t in terms if t.what == "stride")
    elif "size" in kinds:
        kind, first = "shape", next(t for t in terms if t.what == "size")
    elif "storage_offset" in kinds:
        kind = "storage_offset"
    return Condition(
        text=text, kind=kind, form=form, source=first.source, index=first.index, terms=terms, **facts
    )


def _form(node: ast.Compare) -> tuple[Form, dict[str, Any]]:
    sides = [node.left, *node.comparators]
    divisor = _divisor(node)
    if divisor is not None:
        return "multiple", {"multiple": divisor, "negated": isinstance(node.ops[0], ast.NotEq)}
    numbers = [_value(side) if _constant(side) else MISSING for side in sides]
    free = [side for side, number in zip(sides, numbers, strict=True) if number is MISSING]
    if len(free) == 1 and all(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops):
        number = next(n for n in numbers if n is not MISSING)
        negated = isinstance(node.ops[0], ast.NotEq)
        if not _is_term(free[0]):
            return "relation", {"negated": negated}
        return ("exclusion" if negated else "fixed"), {"negated": negated, "expected": number}
    if len(free) == 1:
        if not _is_term(free[0]):
            return "relation", {}
        low, high = _ends(node, numbers)
        return ("range" if len(node.ops) > 1 else "bound"), {"low": low, "high": high}
    if len(free) == 2 and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return "equal", {"negated": isinstance(node.ops[0], ast.NotEq)}
    return "relation", {}


def _ends(node: ast.Compare, numbers: list[Any]) -> tuple[int | None, int | None]:
    """Smallest and largest number that the one free side may have."""
    low: int | None = None
    high: int | None = None
    sides = [node.left, *node.comparators]
    for i, op in enumerate(node.ops):
        a, b, kind = numbers[i], numbers[i + 1], type(op)
        if a is MISSING:
            a, b, kind = b, sides[i], _MIRROR.get(kind, kind)
        if not isinstance(a, int):
            continue
        if kind in (ast.Lt, ast.LtE):
            low = a + (kind is ast.Lt)
        elif kind in (ast.Gt, ast.GtE):
            high = a - (kind is ast.Gt)
    return low, high


def _divisor(node: ast.AST) -> int | None:
    for part in ast.walk(node):
        if (
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Mod)
            and isinstance(_value(part.right), int)
        ):
            return int(_value(part.right))
        if isinstance(part, ast.Call) and _name(part) in _MOD and len(part.args) == 2:
            value = _value(part.args[1])
            if isinstance(value, int):
                return value
    return None


def _terms(node: ast.AST) -> Iterator[Term]:
    """The numbers that an expression names, in the order of the text."""
    term = _term(node)
    if term is not None:
        yield term
        return
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        yield Term(source=ast.unparse(node), what="value")
        return
    children = node.args if isinstance(node, ast.Call) else list(ast.iter_child_nodes(node))
    for child in children:
        yield from _terms(child)


def _term(node: ast.AST) -> Term | None:
    index: int | None = None
    if isinstance(node, ast.Subscript) and isinstance(value := _value(node.slice), int):
        index, node = value, node.value
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args):
        return None
    what = next((name for name in _TERMS if name == node.func.attr), None)
    if what is None or (index is None) != (what == "storage_offset"):
        return None
    return Term(source=ast.unparse(node.func.value), what=what, index=index)


def _is_term(node: ast.expr) -> bool:
    return _term(node) is not None or isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))


def _plain(node: ast.Compare) -> bool:
    """True for one source against one value without arithmetic: ``self.step == 0``."""
    if len(node.ops) > 1 or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return False
    sides = [node.left, node.comparators[0]]
    if any(
        isinstance(part, (ast.BinOp, ast.IfExp)) and not _constant(part)
        for s in sides
        for part in ast.walk(s)
    ):
        return False
    calls = [
        part for s in sides for part in ast.walk(s) if isinstance(part, ast.Call) and _name(part) in _MOD
    ]
    return not calls and (
        isinstance(node.ops[0], ast.Eq) or any(isinstance(side, ast.Call) for side in sides)
    )


# ---- trees ----


def _name(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def _value(node: ast.expr) -> Any:
    """The value of a literal; the text of anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return Code(ast.unparse(node))
