"""`Graph`: runs one traced graph by allocating its outputs and interpreting only what can steer the program
around it.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import sympy
import torch

from cftdiag.fastforward import assumptions, rules
from cftdiag.fastforward.assumptions import note
from cftdiag.fastforward.provenance import ASSUMED, REAL, SKIPPED, is_float, mark, status
from cftdiag.fastforward.steering import Plan
from cftdiag.fastforward.symbols import SYMBOLIC, Binder, Environment, Values, exprs_of
from cftdiag.torch_private.tracing import (
    DisableTorchFunction,
    HigherOrderOperator,
    OpOverload,
    disable_current_modes,
    key_get,
    tree_map,
)

#: Graphs compiled (``fwd``, ``bwd``) and graph runs (``calls``) in this process.
STATS: collections.Counter[str] = collections.Counter()
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Graph:
    """A graph of ATen operators as AOTAutograd hands it to a compiler (``meta["val"]`` on every node).

    ``kind`` is ``fwd`` or ``bwd``. `run` takes the list of actual arguments, empties it (boxed calling
    convention) and returns the list of outputs: memory of the right metadata, with real or plausible values
    where the values can steer Python.
    """

    #: Where to run, if not on the device that was traced for: set by subclasses for devices that are not
    #: there.
    device: torch.device | None = None
    #: Called with the graph and the values of its symbols ahead of each run, where somebody counts.
    on_run: ClassVar[Callable[[Graph, Environment], None] | None] = None
    #: Called with the graph, the values of its symbols and its outputs when a run has ended and let go of its
    #: arguments.
    on_end: ClassVar[Callable[[Graph, Environment, list[Any]], None] | None] = None
    #: What a compiler made of it, where it keeps that.
    lowered: Any = None

    def __init__(self, gm: torch.fx.GraphModule, kind: str) -> None:
        STATS[kind] += 1
        self.gm, self.kind = gm, kind
        self.plan = Plan(gm.graph)
        self.val, self.defines = self.plan.val, self.plan.defines
        self._bind = Binder(
            [self.val[n] for n in self.plan.placeholders], {e for x in self.plan.traced for e in exprs_of(x)}
        )
        self._value = Values(self.plan.shape_env)

    def run(self, args: list[Any]) -> list[Any]:
        """One run of the graph; ``args`` is emptied."""
        with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
            STATS["calls"] += 1
            levels = tuple(status(a) if isinstance(a, torch.Tensor) else REAL for a in args)
            env = self._bind(args)
            if Graph.on_run is not None:
                Graph.on_run(self, env)
            got: dict[torch.fx.Node, Any] = dict(zip(self.plan.placeholders, args, strict=True))
            outer = assumptions.current_node
            try:
                for n in self.plan.wanted(levels):
                    assumptions.current_node = n
                    got[n] = self._step(n, got, env)
                    for symbol, path in self.defines.get(n, {}).items():
                        env[symbol] = sympy.sympify(key_get(got[n], path))
                outputs = self._outputs(got, env)
            finally:
                assumptions.current_node = outer
            args.clear()
            got.clear()
            if Graph.on_end is not None:
                Graph.on_end(self, env, outputs)
            return outputs

    def number(self, traced: Any, env: Environment) -> Any:
        """The Python number that a traced one stands for in a run with these symbols."""
        return self._value(traced, env)

    def _outputs(self, got: dict[torch.fx.Node, Any], env: Environment) -> list[Any]:
        outputs: list[Any] = []
        for out in self.plan.outputs:
            if isinstance(out, torch.fx.Node) and out not in got:
                assumptions.current_node = out
                value = self.val[out]
                got[out] = (
                    self._value(value, env) if isinstance(value, SYMBOLIC) else self._allocated(out, got, env)
                )
            outputs.append(got[out] if isinstance(out, torch.fx.Node) else out)
        return outputs

    def _allocated(self, out: torch.fx.Node, got: dict[torch.fx.Node, Any], env: Environment) -> torch.Tensor:
        """Memory of an output: that of the input or of the other output that it is a view of, else its own."""
        base = _viewed(out)
        if base is out or not isinstance(self.val[base], torch.Tensor):
            return self._empty(self.val[out], env)
        if base not in got:
            got[base] = self._empty(self.val[base], env)
        source, traced = got[base], self.val[out]
        if type(source) not in _PLAIN or source.dtype != traced.dtype:
            return self._empty(traced, env)
        shape, stride = (
            [self._value(x, env) for x in numbers] for numbers in (traced.shape, traced.stride())
        )
        try:
            # its level is that of the memory, which stays as it is
            return source.as_strided(shape, stride, self._value(traced.storage_offset(), env))
        except RuntimeError:  # the argument has another layout than the trace had
            return self._empty(traced, env)

    def _empty(self, traced: torch.Tensor, env: Environment) -> torch.Tensor:
        shape, stride = (
            [self._value(x, env) for x in numbers] for numbers in (traced.shape, traced.stride())
        )
        return mark(
            torch.empty_strided(shape, stride, dtype=traced.dtype, device=self.device or traced.device),
            SKIPPED,
        )

    def _materialize(self, traced: Any, env: Environment) -> Any:
        return tree_map(
            lambda x: self._empty(x, env) if isinstance(x, torch.Tensor) else self._value(x, env), traced
        )

    def _step(self, n: torch.fx.Node, got: dict[torch.fx.Node, Any], env: Environment) -> Any:
        if n.op == "get_attr":
            return getattr(self.gm, str(n.target))
        blank: dict[torch.fx.Node, Any] = {}  # a node used twice is one tensor

        def look(a: torch.fx.Node) -> Any:
            if a in got:
                return got[a]
            if a not in blank:
                blank[a] = self._materialize(self.val[a], env)
            return blank[a]

        args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), look)  # type: ignore[misc]
        if self.device:
            args, kwargs = tree_map(
                lambda x: self.device if isinstance(x, torch.device) else x, (args, kwargs)
            )
        if isinstance(n.target, OpOverload):
            if self.device and self._only_allocates(n, args, kwargs):
                return tree_map(
                    lambda x: rules.settle(x, n.target, args, kwargs) if isinstance(x, torch.Tensor) else x,
                    self._materialize(self.val[n], env),
                )
            result = rules.evaluate(n.target, args, kwargs)
            if (
                n in self.defines
                and not isinstance(result, torch.Tensor)
                and rules.level_of((args, kwargs)) == SKIPPED
            ):
                return self._asserted(n, result)
            return result
        if isinstance(n.target, HigherOrderOperator) and rules.level_of((args, kwargs)) == SKIPPED:
            return self._skip_higher_order(n, env)
        return n.target(*args, **kwargs)  # type: ignore[operator]

    def _asserted(self, n: torch.fx.Node, result: Any) -> Any:
        """A made-up number, moved into the range that the program asserts for it (``torch._check``)."""
        symbols = [s for s, path in self.defines[n].items() if path == ()]
        return self._value.within(symbols[0], result) if symbols else result

    def _only_allocates(self, n: torch.fx.Node, args: Any, kwargs: Any) -> bool:
        """An operator of an absent device may have no CPU version, so its results come from the trace."""
        schema = n.target._schema  # type: ignore[union-attr]
        plain = not schema.is_mutable and not any(r.alias_info for r in schema.returns)
        return (
            plain
            and rules.level_of((args, kwargs)) == SKIPPED
            and n not in self.defines
            and n.target not in rules.SPECIAL
            and n.target.overloadpacket not in rules.READS | rules.VALUE_FREE  # type: ignore[union-attr]
        )

    def _skip_higher_order(self, n: torch.fx.Node, env: Environment) -> Any:
        traced = self.val[n]
        if traced is None:
            traced = {u.args[1]: self.val[u] for u in n.users if u.target is operator.getitem}
        if n.target.name() == "run_and_save_rng_state":  # type: ignore[union-attr]
            # (generator state, outputs of the operator); no placeholder binds the state's size, so it is
            # produced for real
            return (
                {0: self._materialize(traced[0], env).zero_()}
                if self.device and 0 in traced
                else {0: torch.get_rng_state()}
            )
        out = self._materialize(traced, env)
        for t in rules.tensors(out):
            if not is_float(t):
                note("planted", n.target.name())  # type: ignore[union-attr]
                mark(t.zero_(), ASSUMED)
        return out


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one shows: itself where it has memory of its own."""
    while True:
        maker = node.args[0] if node.target is operator.getitem else node
        if not (
            isinstance(maker, torch.fx.Node) and isinstance(maker.target, OpOverload) and maker.target.is_view
        ):
            return node
        base = maker.args[0]
        if not isinstance(base, torch.fx.Node):
            return node
        node = base
