"""Conditions over batch size and length, and their shortest symbolic form (``2 <= S <= 1024``, ``S % 8 ==
0``, ``B*S < 1280``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cftdiag.forecast.formulas import Untranslatable, evaluate, translate

#: Written for a condition that no shape meets.
NEVER = "False"
#: Torch writes its own largest sizes as bounds; beyond this nothing is said by repeating them.
_UNBOUNDED = 2**62


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A conjunction over B and S.

    ``atoms`` are expressions of :mod:`~cftdiag.forecast.formulas`; ``opaque`` are guards that follow the
    shape but have no such expression, so that the condition is necessary and not sufficient.
    """

    atoms: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()

    def holds(self, batch: Any, length: Any) -> Any:
        """True where every atom holds; for arrays, an array of bools."""
        if isinstance(length, np.ndarray):
            found = np.ones(length.shape, dtype=bool)
            for atom in self.atoms:
                found &= np.asarray(evaluate(atom, batch, length), dtype=bool)
            return found
        return all(evaluate(atom, batch, length) for atom in self.atoms)

    def also(self, other: Condition) -> Condition:
        """Both."""
        return Condition(_unique([*self.atoms, *other.atoms]), _unique([*self.opaque, *other.opaque]))

    def bounds(self) -> tuple[str, ...]:
        """The atoms in their shortest form, equivalent for all B, S >= 1; () for no condition, ``("False",)``
        for one that nothing meets.
        """
        return simplify(self.atoms)


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def holds(bounds: Sequence[str], batch: Any, length: Any) -> Any:
    """Evaluate bounds as written by :meth:`Condition.bounds`. Raises ``ValueError`` for a text that is no
    bound.
    """
    return read(bounds).holds(batch, length)


def read(bounds: Sequence[str]) -> Condition:
    """The condition of written bounds; nothing but arithmetic over B and S is accepted."""
    return _read(tuple(bounds))


@functools.lru_cache(maxsize=1024)
def _read(bounds: tuple[str, ...]) -> Condition:
    atoms: list[str] = []
    for text in bounds:
        if text.strip() == NEVER:
            return Condition(("Eq(S, 0)",))
        try:
            found = translate(text, {"B": "B", "S": "S"})
        except Untranslatable as error:
            raise ValueError(f"bound {text!r} is no condition over B and S") from error
        if not found:
            raise ValueError(f"bound {text!r} says nothing about B or S")
        atoms += found
    return Condition(tuple(atoms))


# ---- the shortest form ----


@functools.lru_cache(maxsize=4096)
def simplify(atoms: tuple[str, ...]) -> tuple[str, ...]:
    """See :meth:`Condition.bounds`."""
    form = _Form()
    for atom in _unique(atoms):
        form.add(form.parse(atom))
    return form.write()


class _Form:
    """Intervals of B and S, and the relations that are no interval."""

    def __init__(self) -> None:
        import sympy

        self.sympy = sympy
        self.B, self.S = sympy.symbols("B S", integer=True, positive=True)
        self.low = {self.B: 1, self.S: 1}
        self.high: dict[Any, float] = {self.B: math.inf, self.S: math.inf}
        self.rest: list[Any] = []
        self.never = False

    def parse(self, atom: str) -> Any:
        sp = self.sympy
        names = {
            "B": self.B,
            "S": self.S,
            "min": sp.Min,
            "max": sp.Max,
            "Eq": sp.Eq,
            "Ne": sp.Ne,
            "Not": sp.Not,
        }
        names |= {"floor": sp.floor, "ceiling": sp.ceiling, "abs": sp.Abs, "__builtins__": {}}
        return sp.sympify(eval(atom, names))  # texts composed by formulas.translate

    def add(self, expression: Any) -> None:
        sp = self.sympy
        if expression in (sp.true, True):
            return
        if expression in (sp.false, False):
            self.never = True
        elif isinstance(expression, sp.And):
            for part in expression.args:
                self.add(part)
        elif isinstance(expression, sp.core.relational.Relational):
            self.relation(expression)
        else:
            self.rest.append(expression)

    def relation(self, relation: Any) -> None:
        sp = self.sympy
        difference = sp.expand(relation.lhs - relation.rhs)
        if difference.is_number:
            self.add(relation.func(difference, 0))
            return
        if not difference.is_polynomial(self.B, self.S):
            self.rest.append(relation)
            return
        polynomial, constant, flip = _normal(difference, self.B, self.S)
        op = _FLIPPED[relation.rel_op] if flip else relation.rel_op
        if op == "==" and not constant.is_integer:
            self.never = True
        elif op == "!=" and not constant.is_integer:
            return
        elif polynomial in self.low:
            self.interval(polynomial, op, constant)
        else:
            normal = _relational(sp, op, polynomial, constant)
            if isinstance(normal, sp.core.relational.Relational):
                self.rest.append(normal)
            else:
                self.add(normal)

    def interval(self, symbol: Any, op: str, constant: Any) -> None:
        low, high = -math.inf, math.inf
        if op == "!=":
            self.rest.append(self.sympy.Ne(symbol, constant, evaluate=False))
        if op in ("==", ">="):
            low = math.ceil(constant)
        if op in ("==", "<="):
            high = math.floor(constant)
        if op == ">":
            low = math.floor(constant) + 1
        if op == "<":
            high = math.ceil(constant) - 1
        self.low[symbol] = max(self.low[symbol], low)  # type: ignore[assignment]
        self.high[symbol] = min(self.high[symbol], high)

    def write(self) -> tuple[str, ...]:
        fixed: dict[Any, Any] = {}
        while not self.never:
            known = {x: self.low[x] for x in (self.B, self.S) if self.low[x] == self.high[x]}
            if known == fixed:
                break
            # a number that is known now may settle the other relations, or turn them into intervals
            fixed, rest, self.rest = known, self.rest, []
            for relation in rest:
                self.add(relation.subs(fixed))
        if self.never or any(self.low[x] > self.high[x] for x in self.low):
            return (NEVER,)
        texts = [text for x in (self.B, self.S) for text in self.written(x)]
        kept = _tightest(self.rest)
        if kept is None:
            return (NEVER,)
        for relation in kept:
            settled = self.settled(relation)
            if settled is False:
                return (NEVER,)
            if settled is None:
                texts.append(_print(relation))
        return _unique(texts)

    def written(self, symbol: Any) -> list[str]:
        low, high = self.low[symbol], self.high[symbol]
        if low == high:
            return [f"{symbol} == {low}"]
        if high < _UNBOUNDED:
            return [f"{low} <= {symbol} <= {int(high)}" if low > 1 else f"{symbol} <= {int(high)}"]
        return [f"{symbol} >= {low}"] if low > 1 else []

    def settled(self, relation: Any) -> bool | None:
        """True or False when the intervals already decide a relation ``polynomial op number`` with no
        negative coefficient; else None.
        """
        sp = self.sympy
        if not isinstance(relation, sp.core.relational.Relational) or not relation.rhs.is_number:
            return None
        if relation.rel_op in ("<", "<=") and relation.rhs >= _UNBOUNDED:
            return True
        if not relation.lhs.is_polynomial(self.B, self.S):
            return None
        polynomial = sp.Poly(relation.lhs, self.B, self.S)
        if any(c < 0 for c in polynomial.coeffs()):
            return None
        low = polynomial.eval((self.low[self.B], self.low[self.S]))
        ends = (self.high[self.B], self.high[self.S])
        used = [end for x, end in zip((self.B, self.S), ends, strict=True) if x in relation.lhs.free_symbols]
        high = (
            math.inf
            if math.inf in used
            else polynomial.eval(tuple(1 if end == math.inf else int(end) for end in ends))
        )
        if high >= _UNBOUNDED:
            high = math.inf
        return _decided(relation.rel_op, low, high, relation.rhs)


def _tightest(relations: Sequence[Any]) -> list[Any] | None:
    """Of the relations ``polynomial op number`` of one polynomial, the highest lower bound and the lowest upper
    bound; None where they leave nothing. The order stays. Of what need not be whole all stay.
    """
    bounding = ("<", "<=", ">", ">=", "==")
    ends: dict[Any, dict[str, tuple[Any, int]]] = {}
    for at, relation in enumerate(relations):
        op = getattr(relation, "rel_op", None)
        if op not in bounding or not relation.rhs.is_number or not relation.lhs.is_integer:
            continue
        low = math.floor(relation.rhs) + 1 if op == ">" else math.ceil(relation.rhs)
        high = math.ceil(relation.rhs) - 1 if op == "<" else math.floor(relation.rhs)
        side = ends.setdefault(relation.lhs, {})
        if op in (">", ">=", "==") and ("low" not in side or low > side["low"][0]):
            side["low"] = low, at
        if op in ("<", "<=", "==") and ("high" not in side or high < side["high"][0]):
            side["high"] = high, at
    if any(s["low"][0] > s["high"][0] for s in ends.values() if len(s) == 2):
        return None
    kept = {at for side in ends.values() for _, at in side.values()}
    return [
        r
        for at, r in enumerate(relations)
        if at in kept
        or getattr(r, "rel_op", None) not in bounding
        or not r.rhs.is_number
        or not r.lhs.is_integer
    ]


def _decided(op: str, low: Any, high: Any, n: Any) -> bool | None:
    always = {
        "<": high < n,
        "<=": high <= n,
        ">": low > n,
        ">=": low >= n,
        "==": low == high == n,
        "!=": n < low or n > high,
    }
    never = {
        "<": low >= n,
        "<=": low > n,
        ">": high <= n,
        ">=": high < n,
        "==": n < low or n > high,
        "!=": low == high == n,
    }
    if always[op]:
        return True
    return False if never[op] else None


_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def _normal(difference: Any, *symbols: Any) -> tuple[Any, Any, bool]:
    """``difference op 0`` as ``polynomial op constant`` with coprime integer coefficients, the first
    positive; True when op turns around.
    """
    import sympy

    polynomial = sympy.Poly(difference, *symbols)
    constant = polynomial.nth(*(0 for _ in symbols))
    coefficients = [c for monomial, c in polynomial.terms() if any(monomial)]
    scale = functools.reduce(sympy.gcd, coefficients)
    flip = coefficients[0] < 0
    scale = -abs(scale) if flip else abs(scale)
    return sympy.expand((difference - constant) / scale), -constant / scale, bool(flip)


def _relational(sp: Any, op: str, left: Any, right: Any) -> Any:
    classes = {"<": sp.Lt, "<=": sp.Le, ">": sp.Gt, ">=": sp.Ge, "==": sp.Eq, "!=": sp.Ne}
    return classes[op](left, right)


@functools.lru_cache(maxsize=1)
def _printer() -> Any:
    from sympy.printing.str import StrPrinter

    class Printer(StrPrinter):  # type: ignore[misc]
        def _print_Mod(self, e: Any) -> str:
            return (
                f"({self._print(e.args[0])}) % {self._print(e.args[1])}"
                if e.args[0].args
                else f"{self._print(e.args[0])} % {self._print(e.args[1])}"
            )

        def _print_floor(self, e: Any) -> str:
            numerator, denominator = e.args[0].as_numer_denom()
            return f"(({self._print(numerator)}) // ({self._print(denominator)}))"

        def _print_Relational(self, e: Any) -> str:
            return f"{self._print(e.lhs)} {e.rel_op} {self._print(e.rhs)}"

        def _print_And(self, e: Any) -> str:
            return " and ".join(f"({self._print(a)})" for a in sorted(e.args, key=str))

        def _print_Or(self, e: Any) -> str:
            return " or ".join(f"({self._print(a)})" for a in sorted(e.args, key=str))

        def _print_Not(self, e: Any) -> str:
            return f"not ({self._print(e.args[0])})"

        def _print_Min(self, e: Any) -> str:
            return f"min({', '.join(self._print(a) for a in e.args)})"

        def _print_Max(self, e: Any) -> str:
            return f"max({', '.join(self._print(a) for a in e.args)})"

        def _print_Abs(self, e: Any) -> str:
            return f"abs({self._print(e.args[0])})"

    return Printer()


def _print(expression: Any) -> str:
    text: str = _printer().doprint(expression)
    return text
