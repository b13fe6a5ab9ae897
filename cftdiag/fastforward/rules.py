"""One rule for every operator, used both for eager operators and for slices of compiled graphs.

No skipped input    run for real; the outputs are REAL, or ASSUMED if an input was. A skipped input
allocate the outputs, compute nothing. Floating outputs are SKIPPED. Non-floating outputs (indices, masks,
counts) get a
                    plausible value and are ASSUMED, so that non-floating tensors always hold concrete, mutually consistent values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from cftdiag.fastforward import assumed_values
from cftdiag.fastforward.assumptions import note
from cftdiag.fastforward.provenance import ASSUMED, REAL, SKIPPED, is_float, mark, raise_to, status
from cftdiag.torch_private.tracing import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    OpOverload,
    amp_unscale,
    disable_current_modes,
    local_scalar_dense,
    tree_leaves,
    tree_map,
    tree_map_only,
    unique2,
)

aten = torch.ops.aten
#: Tensors of more elements are skipped even if they could be computed for real.
CAP = 1 << 22
#: ``zeros_like(weight)``, random initialisation and the like are written for real only up to this many
#: elements.
SMALL = 1 << 16

_NEW = {aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty, aten.new_empty_strided}
#: The result does not depend on the values of the inputs.
VALUE_FREE = {
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.empty_like,
    aten.rand_like,
    aten.randn_like,
} | _NEW
#: The result is a Python number.
READS = {local_scalar_dense, aten.is_nonzero, aten.equal, aten.item}
_FACTORIES = {aten.zeros, aten.ones, aten.full, aten.rand, aten.randn}
_RANDOM = {aten.rand, aten.randn, aten.normal_, aten.uniform_}
#: Their elements stay apart: what is known of one is not lost by what is not known of another.
_JOINS = {aten.stack, aten.cat}
#: Their shape functions do not look at dtypes.
_ONE_DTYPE = {aten.mm, aten.addmm, aten.mv, aten.addmv}
_SIZE_FROM_DATA = {
    aten.nonzero,
    aten.masked_select,
    aten.unique_dim,
    unique2,
    aten.repeat_interleave,
    aten.bincount,
}

#: Operators that torch itself brings: where one fails, the program fails.
_OF_TORCH = frozenset(
    {"aten", "prims", "prim", "c10d", "_c10d_functional", "fsdp", "higher_order", "quantized"}
)

_Rule = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
SPECIAL: dict[Any, _Rule] = {}


#: Types of arguments that hold no tensor.
_LEAVES = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout})


class Spec(NamedTuple):
    """Metadata of one output."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


_fake = FakeTensorMode()
_specs: dict[Any, Any] = {}


def rule(*ops: Any) -> Callable[[_Rule], _Rule]:
    """Register a function ``(func, args, kwargs) -> result`` that replaces `evaluate` for these operators."""

    def register(function: _Rule) -> _Rule:
        SPECIAL.update((op, function) for op in ops)
        return function

    return register


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors in a nested structure."""
    # asked several times for each operator of a step: arguments are mostly plain, and need no general walk
    found: list[torch.Tensor] = []
    for x in tree if type(tree) in (tuple, list) else (tree,):
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif type(x) in (tuple, list):
            found += tensors(x)
        elif type(x) is dict:
            found += tensors(tuple(x.values()))
        elif type(x) not in _LEAVES:
            found += (leaf for leaf in tree_leaves(x) if isinstance(leaf, torch.Tensor))
    return found


def level_of(tree: Any) -> int:
    """Highest level among the tensors of a nested structure."""
    return max(map(status, tensors(tree)), default=REAL)


def spec_of(x: Any) -> Any:
    """`Spec` of a tensor; anything else unchanged."""
    return Spec(tuple(x.shape), x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else x


def empty(spec: Spec) -> torch.Tensor:
    """Unwritten memory of the given metadata."""
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)


def output_specs(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The structure of ``func(*args, **kwargs)`` with a `Spec` for every tensor, without computing; cached."""
    key: Any = None
    if isinstance(func, OpOverload):  # a higher-order operator takes functions, which are new in every call
        with contextlib.suppress(TypeError):  # an unhashable argument
            key = (func, tuple(map(spec_of, tree_leaves((args, kwargs)))))
            if key in _specs:
                return _specs[key]
    _same_dtype(func, args)
    with disable_current_modes(), _fake:
        blank = tree_map_only(torch.Tensor, lambda t: empty(spec_of(t)), (args, kwargs))
        out = tree_map(spec_of, func(*blank[0], **blank[1]))
    if key is not None:
        _specs[key] = out
    return out


def _same_dtype(func: Any, args: Sequence[Any]) -> None:
    """Refuse what the kernels of matrix products refuse, and their shape functions let pass."""
    if getattr(func, "overloadpacket", None) in _ONE_DTYPE:
        dtypes = {t.dtype for t in tensors(args)}
        if len(dtypes) > 1:
            told = " and ".join(sorted(str(dtype) for dtype in dtypes))
            raise RuntimeError(f"{func} needs matrices of the same dtype, but got {told}")


def settle(out: torch.Tensor, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Level, and plausible contents, of one freshly allocated output of a skipped operator."""
    if is_float(out) or out.numel() > CAP:
        return mark(out, SKIPPED)
    assumed_values.fill(out, func, args, kwargs)
    note("planted", func)
    return mark(out, ASSUMED)


def allocate(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Result of a skipped operator that writes none of its inputs."""
    try:
        specs = output_specs(func, args, kwargs)
    except (DynamicOutputShapeException, DataDependentOutputException):
        return _run_for_size(func, args, kwargs)
    return tree_map(
        lambda s: settle(empty(s), func, args, kwargs) if isinstance(s, Spec) else s,
        specs,
        is_leaf=lambda x: isinstance(x, Spec),
    )


def _run_for_size(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator whose output size depends on data, with one-element stand-ins for what is skipped."""
    deciding = [t for t in tensors((args, kwargs)) if not is_float(t)] or tensors((args, kwargs))
    if any(map(status, deciding)):
        note("read", func)
    out = func(
        *tree_map_only(torch.Tensor, _stand_in, args), **tree_map_only(torch.Tensor, _stand_in, kwargs)
    )
    for t in tensors(out):
        mark(t, SKIPPED if is_float(t) else ASSUMED)
    return out


def _stand_in(t: torch.Tensor) -> torch.Tensor:
    if status(t) < SKIPPED:
        return t
    return (torch.ones if is_float(t) else torch.zeros)((), dtype=t.dtype, device=t.device).expand(t.shape)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """(schema argument, actual argument) of all that the operator writes."""
    named = list(zip(func._schema.arguments, args, strict=False))
    named += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
    return [(a, value) for a, value in named if a.alias_info is not None and a.alias_info.is_write]


def skip_mutable(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Leave what a skipped operator would have written as it is, and say so in its level."""
    by_alias = {}
    for argument, value in _written(func, args, kwargs):
        by_alias[frozenset(argument.alias_info.before_set)] = value
        for t in tensors(value):
            if is_float(t) or t.numel() > CAP:
                mark(t, SKIPPED)
            else:
                note("planted", func)
                raise_to(t, ASSUMED)
    returns = func._schema.returns
    if not returns:
        return None
    if all(r.alias_info is not None for r in returns):
        out = tuple(by_alias[frozenset(r.alias_info.before_set)] for r in returns)
        return out[0] if len(out) == 1 else out
    return allocate(func, args, kwargs)


def _filled_for_real(packet: Any, like: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the result of a `VALUE_FREE` operator is worth writing: all that can steer Python, and floats
    while they are few.
    """
    size = math.prod(args[1]) if packet in _NEW else like.numel()
    dtype = kwargs.get("dtype") or like.dtype
    return size <= (SMALL if dtype.is_floating_point and status(like) == SKIPPED else CAP)


def _too_big(
    packet: Any, ins: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Real in principle, but not worth the time and memory."""
    if packet in _FACTORIES:
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        return dtype.is_floating_point and math.prod(args[0]) > (SMALL if packet in _RANDOM else CAP)
    return any(t.numel() > (SMALL if packet in _RANDOM else CAP) for t in ins)


def _part_is_known(ins: Sequence[torch.Tensor]) -> bool:
    """Whether few elements are joined, and some of them were computed."""
    return (
        min(map(status, ins)) < SKIPPED and sum(t.numel() for t in ins) <= SMALL and all(map(is_float, ins))
    )


@rule(amp_unscale.default)
def _gradients_are_finite(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A gradient scaler skips the step of a gradient that overflows; one that nobody computed does not."""
    if level_of(args[0]) < SKIPPED:
        func(*args, **kwargs)


def evaluate(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Result of one operator (an ``OpOverload``) under the rule of this module."""
    if func in SPECIAL:
        return SPECIAL[func](func, args, kwargs)
    ins = tensors((args, kwargs))
    level = max(map(status, ins), default=REAL)
    schema, packet = func._schema, func.overloadpacket
    if any(r.alias_info is not None for r in schema.returns) and not schema.is_mutable:
        return func(*args, **kwargs)  # a view is metadata only; its level comes with the storage
    if packet in READS:
        if level:
            note("read", func)
        return assumed_values.scalar(ins[0].dtype) if level == SKIPPED else func(*args, **kwargs)
    if packet in VALUE_FREE and _filled_for_real(packet, ins[0], args, kwargs):
        return func(*args, **kwargs)
    if level == SKIPPED and packet in _JOINS and _part_is_known(ins):
        # a flag that travels with a loss: where it is read, it must be the flag
        return mark(func(*tree_map_only(torch.Tensor, _stand_in, args), **kwargs), ASSUMED)
    if level == SKIPPED or _too_big(packet, ins, args, kwargs):
        return skip_mutable(func, args, kwargs) if schema.is_mutable else allocate(func, args, kwargs)
    if level and packet in _SIZE_FROM_DATA:
        note("read", func)
    try:
        out = func(*args, **kwargs)
    except Exception:
        if func.namespace in _OF_TORCH:
            raise
        # an operator of a library's own, whose kernel is for a device that is not here: its shapes are known
        note("kernel", func)
        return skip_mutable(func, args, kwargs) if schema.is_mutable else allocate(func, args, kwargs)
    if level:
        for t in tensors((out, [value for _, value in _written(func, args, kwargs)])):
            raise_to(t, level)
    return out
