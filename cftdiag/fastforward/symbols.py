"""Values of symbolic sizes at run time, from the arguments of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from cftdiag.fastforward.assumptions import note
from cftdiag.torch_private.tracing import ShapeEnv, try_solve

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Environment = dict[sympy.Basic, sympy.Basic]
_Read = Callable[[Sequence[Any]], Any]


def expr_of(number: Any) -> sympy.Basic:
    """Sympy expression of a traced or plain number."""
    return number.node.expr if isinstance(number, SYMBOLIC) else sympy.sympify(number)


def exprs_of(value: Any) -> list[sympy.Basic]:
    """All symbolic expressions in one traced value: a tensor's sizes and strides, or a symbolic number."""
    if isinstance(value, torch.Tensor):
        return [x.node.expr for x in (*value.shape, *value.stride()) if isinstance(x, SYMBOLIC)]
    return [value.node.expr] if isinstance(value, SYMBOLIC) else []


def shape_env_of(values: Sequence[Any]) -> ShapeEnv | None:
    """The shape environment of the first symbolic number found in traced values, or None when nothing is
    symbolic.
    """
    for value in values:
        for x in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(x, SYMBOLIC):
                return x.node.shape_env
    return None


class Binder:
    """Solve ``traced size == actual size`` for the symbols of a graph.

    In this order: bare symbols (always enough for what AOTAutograd saves, because it adds the binding symbols
    to the backward); equations in one remaining unknown, such as ``8*s0``; a compound such as ``s0*s1`` used
    as a whole. What stays unknown is left to `Values`. All of them are exact whatever sizes come next.
    """

    def __init__(self, placeholders: Sequence[Any], needed: set[sympy.Basic]) -> None:
        # sizes and numbers first: the stride of a dimension of size one need not match what was traced
        sizes: list[tuple[sympy.Basic, _Read]] = []
        strides: list[tuple[sympy.Basic, _Read]] = []
        for i, traced in enumerate(placeholders):
            if isinstance(traced, torch.Tensor):
                sizes += [(expr_of(x), lambda a, i=i, d=d: a[i].shape[d]) for d, x in enumerate(traced.shape)]  # type: ignore[misc]
                strides += [
                    (expr_of(x), lambda a, i=i, d=d: a[i].stride(d))  # type: ignore[misc]
                    for d, x in enumerate(traced.stride())
                ]
            elif isinstance(traced, SYMBOLIC):
                sizes.append((expr_of(traced), lambda a, i=i: a[i]))  # type: ignore[misc]
        self._direct: dict[sympy.Basic, _Read] = {}
        compound: dict[sympy.Basic, _Read] = {}
        for expr, read in sizes + strides:
            if expr.is_Symbol:
                self._direct.setdefault(expr, read)
            elif expr.free_symbols:
                compound.setdefault(expr, read)
        unknown = set().union(*(e.free_symbols for e in needed), ()) - set(self._direct)
        self._solved = self._solve(compound, unknown)
        self._whole = [(expr, read) for expr, read in compound.items() if expr.free_symbols & unknown]

    def _solve(
        self, compound: Mapping[sympy.Basic, _Read], unknown: set[sympy.Basic]
    ) -> list[tuple[Any, Any, Any, _Read]]:
        solved, known, progress = [], set(self._direct), True
        while unknown and progress:
            progress = False
            for expr, read in compound.items():
                left = expr.free_symbols - known
                if len(left) != 1 or not left & unknown:
                    continue
                symbol, target = next(iter(left)), sympy.Dummy("t", integer=True, positive=True)
                solution = try_solve(sympy.Eq(expr, target), symbol)
                if solution is not None:
                    solved.append((symbol, solution[1], target, read))
                    known.add(symbol)
                    unknown.discard(symbol)
                    progress = True
        return solved

    def __call__(self, args: Sequence[Any]) -> Environment:
        """Symbol (or compound taken as a whole) -> value, for the actual arguments."""
        env: Environment = {}
        for symbol, read in self._direct.items():
            actual = read(args)
            env[symbol] = sympy.Float(actual) if isinstance(actual, float) else sympy.Integer(int(actual))
        for symbol, inverse, target, read in self._solved:
            env[symbol] = sympy.Integer(
                int(inverse.xreplace({target: sympy.Integer(int(read(args)))}).xreplace(env))
            )
        env.update((expr, sympy.Integer(int(read(args)))) for expr, read in self._whole)
        return env


class Values:
    """Concrete value of traced numbers, with a stated choice for what the arguments do not determine."""

    def __init__(self, shape_env: ShapeEnv | None) -> None:
        self._examples = {} if shape_env is None else shape_env.backed_var_to_val
        self._ranges = {} if shape_env is None else shape_env.var_to_range

    def within(self, symbol: sympy.Basic, wanted: Any) -> Any:
        """``wanted``, moved into the range that the traced program has asserted for this data-dependent
        symbol.
        """
        bounds = self._ranges.get(symbol)
        if bounds is None or isinstance(wanted, (bool, float)):
            return wanted
        if bounds.lower.is_Integer and wanted < bounds.lower:
            return int(bounds.lower)
        if bounds.upper.is_Integer and wanted > bounds.upper:
            return int(bounds.upper)
        return wanted

    def __call__(self, number: Any, env: Environment) -> Any:
        """Python number for a traced number; plain numbers are returned as they are."""
        if not isinstance(number, SYMBOLIC):
            return number
        expr = number.node.expr.xreplace(env)
        if expr.free_symbols:  # a product may be known only as a whole
            expr = expr.subs({known: value for known, value in env.items() if not known.is_Symbol})
        for symbol in expr.free_symbols:
            note("hint", symbol)
            example = self._examples.get(symbol)
            expr = expr.xreplace(
                {symbol: sympy.sympify(self.within(symbol, 2) if example is None else example)}
            )
        if isinstance(number, torch.SymBool):
            return bool(expr)
        return float(expr) if isinstance(number, torch.SymFloat) else int(expr)
