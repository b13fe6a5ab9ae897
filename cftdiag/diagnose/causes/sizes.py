"""Recompiles by a size: which dimension it is, and why a dynamic one was not enough."""

from __future__ import annotations

import dataclasses
import re

from cftdiag import guards
from cftdiag.conditions import Condition
from cftdiag.details import Symbol, TensorArgument
from cftdiag.diagnose.engine.cause import RECOMPILES, cause
from cftdiag.diagnose.engine.miss import Miss
from cftdiag.findings import Remedy

_DYNAMIC = Remedy(
    summary="Compile with dynamic=True: sizes are symbols from the first call on.",
    change={"dynamic": True},
    applicability="safe",
)
_AUTO = Remedy(
    summary="Leave dynamic at torch's default instead of False: the second size makes the dimension dynamic.",
    change={"dynamic": "auto"},
    applicability="safe",
)
_MARK = Remedy(
    summary="Mark the dimension before the first call: torch._dynamo.mark_dynamic({argument}, {dim}).",
    change={"mark_dynamic": {"{argument}": ["{dim}"]}},
    applicability="safe",
)
_SOURCES = Remedy(
    summary="Without touching code: TORCH_COMPILE_DYNAMIC_SOURCES={dynamic_source}.",
    change={"env": {"TORCH_COMPILE_DYNAMIC_SOURCES": "{dynamic_source}"}},
    applicability="safe",
)
_PAD = Remedy(
    summary="Pad or bucket to a few lengths in the collator.",
    change={"pad_to_multiple_of": 64},
    applicability="changes_numbers",
)
_NO_MIX = Remedy(
    summary="Switch that fusion off: torch._inductor.config.triton.mix_order_reduction = False. A reduction over rows "
    "and one over columns of the same data then read it once each.",
    change={"torch._inductor.config.triton.mix_order_reduction": False},
    applicability="safe",
)
_UNGUARDED = Remedy(
    summary="Ignore range guards of cached code: torch._inductor.config.unsafe_skip_cache_dynamic_shape_guards = True.",
    change={"torch._inductor.config.unsafe_skip_cache_dynamic_shape_guards": True},
    applicability="changes_numbers",
    unsafe=True,
)
_NON_STRICT = Remedy(
    summary="From torch 2.15 on, keep the fusion and let it not ask for the size: "
    "torch._inductor.config.triton.mix_order_reduction_non_strict_mode = True. Before, this widens a fusion that "
    "computes wrong gradients where a reduction writes into a view (pytorch#193061).",
)


CAUSES = (
    cause(
        "seq_len",
        says="Dimension {dim} of `{argument}` is {meaning}: compiled for {expected}, called with {actual}.",
        kinds=RECOMPILES,
        remedies=(
            _DYNAMIC,
            _AUTO,
            _MARK,
            _SOURCES,
            _PAD,
            Remedy(
                summary="Gate it in training: torch.compiler.set_stance('fail_on_recompile') after the warm-up turns a late recompile into an error.",
                applicability="diagnosis",
            ),
        ),
    ),
    cause(
        "batch_dim",
        says="Dimension {dim} of `{argument}` is the batch: compiled for {expected}, called with {actual}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Drop the last partial batch: DataLoader(..., drop_last=True), or pad it.",
                change={"drop_last": True},
                applicability="changes_numbers",
            ),
            _DYNAMIC,
            _AUTO,
            _MARK,
            _SOURCES,
        ),
    ),
    cause(
        "duck_shape",
        says="`{argument}` dimension {dim} was equal to another dimension ({expected}) when the code was compiled; now it is {actual}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Switch duck sizing off: torch.fx.experimental._config.use_duck_shape = False.",
                change={"torch.fx.experimental._config.use_duck_shape": False},
                applicability="safe",
            ),
            Remedy(
                summary='Name what keeps its size: torch.compiler.config.static_sources = "{static_source}" (or '
                "TORCH_COMPILE_STATIC_SOURCES). It is a constant then, and shares its symbol with nothing.",
                change={"torch.compiler.config.static_sources": "{static_source}"},
                applicability="safe",
            ),
            Remedy(summary="Warm up with sizes that equal no other dimension of any input."),
        ),
    ),
    cause(
        "size_0_1",
        says="Dimension {dim} of `{argument}` is {actual}, compiled for {expected}; 0 and 1 are compiled separately even with dynamic shapes.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Keep that dimension at 2 or more: drop or pad batches of one.",
                change={"drop_last": True},
                applicability="changes_numbers",
            ),
            Remedy(
                summary="Mark it unbacked: torch._dynamo.decorators.mark_unbacked({argument}, {dim}).",
                change={"mark_unbacked": {"{argument}": ["{dim}"]}},
                applicability="safe",
            ),
            Remedy(summary="Accept two variants and warm both before the first timed step."),
        ),
    ),
    cause(
        "shape_divisibility",
        says="Compiled for `{guard}`; dimension {dim} of `{argument}` is {actual} now.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Pad every batch to a multiple of {multiple}.",
                change={"pad_to_multiple_of": "{multiple}"},
                applicability="changes_numbers",
            ),
            Remedy(summary="Make the code pad unconditionally, so that no guard on the remainder is needed."),
        ),
    ),
    cause(
        "inductor_fusion_threshold",
        says="Inductor's scheduler fused under the assumption `{guard}` ({added}).",
        kinds=RECOMPILES,
        remedies=(
            _NO_MIX,
            _NON_STRICT,
            Remedy(
                summary="Keep batch x length on one side of the threshold (pack to a fixed number of tokens)."
            ),
            _UNGUARDED,
        ),
    ),
    cause(
        "inductor_size_regime",
        says="Inductor's code holds for `{guard}` only ({added}).",
        kinds=RECOMPILES,
        remedies=(
            Remedy(summary="Warm one length of each range before the first step."),
            Remedy(
                summary="Pack or pad to one length.",
                change={"pad_to_multiple_of": 1024},
                applicability="changes_numbers",
            ),
            _UNGUARDED,
        ),
    ),
    cause(
        "size_specialized",
        says="{fixed}",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Keep the size out of keys, texts, int() and comparisons with a number: build one table or buffer "
                "that is larger than any size met, and slice it.",
            ),
            Remedy(
                summary="Decide what depends on the size outside the block and pass it as a tensor.",
            ),
            _PAD,
        ),
    ),
    cause(
        "parameter_shape",
        says="Dimension {dim} of the parameter `{argument}` was {expected} when the code was compiled and is {actual} now. Sizes "
        "of parameters are constants of a graph, whatever `dynamic` says: each shape is one graph more.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(summary="Give {argument} its shape before the first compiled call, and leave it."),
            Remedy(
                summary="Where ranks of an adapter come in turn: build it with the largest one and fill the rest with zeros, which "
                "add nothing; what divides by the rank is then a tensor.",
            ),
            Remedy(
                summary="Each shape is a variant: run one step of each before the timed steps, and keep their number below "
                "recompile_limit (now {limit}).",
            ),
        ),
    ),
    cause(
        "stride",
        says="`{argument}` has another memory layout than when the code was compiled ({layout}).",
        kinds=RECOMPILES,
        remedies=(
            Remedy(summary="Call {argument}.contiguous() before the block on every path."),
            Remedy(summary="Accept one variant per layout and warm them up."),
        ),
    ),
)


def classify(miss: Miss) -> str | None:
    """The cause of a miss by size, stride or an expression over sizes; None when the guard is about something
    else.
    """
    guard = miss.guard
    if guard.kind == "stride":
        return "stride"
    if guard.kind == "storage_offset":
        return "duck_shape" if guard.form == "equal" else "stride"
    if guard.kind not in ("size", "shape"):
        return None
    added = guards.inductor_place(miss.added)
    if guard.form == "multiple":
        return "shape_divisibility"
    if "_inductor/" in added:
        return "inductor_fusion_threshold" if "_inductor/scheduler.py" in added else "inductor_size_regime"
    if not miss.in_time() and (miss.on_module() or (guard.kind == "size" and miss.modules_differ())):
        return "per_layer_attr"
    if guard.kind == "size":
        return "parameter_shape" if _of_parameter(miss) else _fixed(miss)
    if guard.form == "equal":
        return "duck_shape"
    actual = actual_size(miss)
    zero_or_one = guard.form == "exclusion" and guard.expected in (0, 1)
    if guard.form == "exclusion" and not zero_or_one:
        return "size_specialized"
    if actual in (0, 1) or zero_or_one or (guard.form == "bound" and guard.low in (1, 2)):
        return "size_0_1"
    return "size_specialized" if _compared(guard) else dimension(miss)


def _compared(guard: Condition) -> bool:
    """True for a size that has to be on one side of a number: code that compares it with one."""
    return guard.form in ("bound", "range") and (guard.low is not None or guard.high is not None)


def _of_parameter(miss: Miss) -> bool:
    """True for a parameter of the block: torch makes its sizes constants, whatever ``dynamic`` says."""
    return miss.on_module() and "._parameters[" in miss.guard.path


def _fixed(miss: Miss) -> str:
    """A size that was compiled as a constant."""
    guard = miss.guard
    later = re.search(r"/(\d+)", miss.entry or "")
    dynamic = miss.dynamic is True or (miss.dynamic is None and later is not None and int(later[1]) > 0)
    if guard.expected in (0, 1) and not isinstance(guard.expected, bool) and dynamic:
        return "size_0_1"
    if miss.dynamic is True and actual_size(miss) in (0, 1) and not miss.on_module():
        return "size_0_1"  # whatever else fixed the size: 0 and 1 have code of their own
    fixed = specialization(miss)
    if fixed is not None and not miss.on_module():
        return "duck_shape" if _parted(miss, fixed) else "size_specialized"
    if miss.dynamic is True and not miss.on_module() and _equals_another(miss):
        return "duck_shape"
    return dimension(miss)


def specialization(miss: Miss) -> Symbol | None:
    """torch's own word on the size: the symbol that the compile of the closest entry turned into this constant."""
    made, guard = miss.history.compiles.get(miss.entry or ""), miss.event.guard
    if made is None or guard is None or guard.source is None:
        return None
    fixed = [s for s in made.compiled.symbols if s.record == "symbolic_shape_specialization"]
    fixed = [s for s in fixed if str(s.value) == str(miss.guard.expected)]
    at = next((i for i, s in enumerate(fixed) if guard.source in (s.sources or ())), None)
    if at is None or fixed[at].reason != "find":
        return None if at is None else fixed[at]
    # torch only looked up here what a symbol is that it had found equal to this one: that one was fixed before
    first = next((s for s in reversed(fixed[:at]) if s.reason != "find" and s.line is not None), fixed[at])
    return dataclasses.replace(fixed[at], line=first.line)


def _parted(miss: Miss, symbol: Symbol) -> bool:
    """True when one symbol stood for several dimensions and another one of them has kept its size: they were equal
    by chance.
    """
    for source in symbol.sources or ():
        term = guards.size_term(guards.local_names(str(source)))
        if term is None or term.index is None:
            continue
        name = miss.event.missed.parameters.get(term.source, term.source)
        same = (name, term.index) == (miss.guard.source, miss.guard.index)
        if not same and miss.size(name, term.index) == miss.guard.expected:
            return True
    return _told_apart(miss, symbol)


def _told_apart(miss: Miss, symbol: Symbol) -> bool:
    """True when the compile that the miss led to gave another of the dimensions, one inside of a tuple perhaps, a
    symbol of its own with the old size.
    """
    again = miss.history.compiles.get(miss.event.compile_id or "")
    guard = miss.event.guard
    if again is None or guard is None:
        return False
    others = set(symbol.sources or ()) - {guard.source}
    return any(
        one.record == "create_symbol" and one.source in others and str(one.val) == str(miss.guard.expected)
        for one in again.compiled.symbols
    )


def kept(miss: Miss) -> str | None:
    """``L['y']:0``: the dimensions that were as large as the one that changed and have kept their size, as torch's list
    of static sources names them; None where none is known.
    """
    symbol = specialization(miss)
    if symbol is not None:
        names = [str(source) for source in symbol.sources or ()]
        again = miss.history.compiles.get(miss.event.compile_id or "")
        apart = {
            one.source
            for one in (again.compiled.symbols if again is not None else ())
            if one.record == "create_symbol" and str(one.val) == str(miss.guard.expected)
        }
        found = [name for name in names if name in apart or _same_size(miss, name)]
    elif miss.guard.form == "equal" and miss.event.guard is not None:
        told = miss.event.guard.condition.terms
        terms = [f"{guards.full_source(t.source)}.size()[{t.index}]" for t in told if t.what == "size"]
        found = [name for name in terms if _same_size(miss, name)]
    else:
        frame = {name: own for own, name in miss.event.missed.parameters.items()}
        found = [
            f"{guards.full_source(frame.get(name, name))}.size()[{dim}]"
            for name, described in miss.entry_arguments.items()
            for dim, size in enumerate(described.shape if isinstance(described, TensorArgument) else ())
            if size == miss.guard.expected and miss.size(name, dim) == size
        ]
    listed = [re.sub(r"\.size\(\)\[(\d+)\]$", r":\1", name) for name in found if "G[" not in name]
    return ",".join(dict.fromkeys(name for name in listed if "," not in name)) or None


def _same_size(miss: Miss, source: str) -> bool:
    """True for a dimension (``L['y'].size()[0]``) that is as large as when the entry was compiled."""
    term = guards.size_term(guards.local_names(source))
    if term is None or term.index is None:
        return False
    name = miss.event.missed.parameters.get(term.source, term.source)
    now = miss.size(name, term.index)
    return now is not None and now == miss.size(name, term.index, of_entry=True)


def fixed(miss: Miss) -> str | None:
    """The sentence of ``size_specialized``."""
    guard, name = miss.guard, guards.pretty(miss.guard.source)
    if guard.form == "exclusion":
        return (
            f"The code compares dimension {guard.index} of `{name}` with {guard.expected}, so the graph for all other "
            f"sizes refuses {guard.expected}, which is compiled apart."
        )
    if _compared(guard):
        return (
            f"The code compares dimension {guard.index} of `{name}` with a number, so the graph holds for `{guard.text}` "
            f"only ({actual_size(miss)} now): sizes on the other side are compiled apart."
        )
    return (
        f"The code turns dimension {guard.index} of `{name}` into the constant {guard.expected}, so each size is "
        f"compiled anew ({actual_size(miss)} now), whatever `dynamic` says."
    )


def sides(guard: Condition) -> str | None:
    """``on each side of 16``: what there is to warm up where a size is compared with a number; else None."""
    if not _compared(guard):
        return None
    if guard.low is not None and guard.high is not None:
        return f"within {guard.low} .. {guard.high} and one on each side of it"
    return f"on each side of {guard.low if guard.high is None else guard.high}"


def layout(guard: Condition) -> str:
    """What a guard on a stride held, for a sentence."""
    if guard.form or guard.index is None:
        return f"`{guard.text}` held then"
    return f"stride {guard.index}: {guard.expected} then, {guard.actual} now"


def _equals_another(miss: Miss) -> bool:
    """True when the size that was fixed equals another dimension of the inputs of the call that compiled it."""
    guard = miss.guard
    for name, described in miss.entry_arguments.items():
        for dim, size in enumerate(described.shape if isinstance(described, TensorArgument) else ()):
            if size == guard.expected and (name, dim) != (guard.source, guard.index):
                return True
    return False


def actual_size(miss: Miss) -> int | None:
    """The size that was met."""
    guard = miss.guard
    if isinstance(guard.actual, int):
        return guard.actual
    return miss.size(guard.source, guard.index) if guard.index is not None else None


def entry_size(miss: Miss) -> int | None:
    """The size that the entry was compiled with."""
    guard = miss.guard
    if guard.kind == "size" and isinstance(guard.expected, int):
        return guard.expected
    return miss.size(guard.source, guard.index, of_entry=True) if guard.index is not None else None


def dimension(miss: Miss) -> str:
    """``batch_dim`` or ``seq_len``: by the batch's own dimensions, then by which of them varies, then by
    position.
    """
    context, step, actual, expected = miss.context, miss.event.step, actual_size(miss), entry_size(miss)
    batch, length = context.batch_size_at(step), context.length_at(step)
    varying = (len(set(context.batch_sizes)) > 1, len(set(context.lengths)) > 1)
    is_batch = actual is not None and actual == batch and expected in (None, *context.batch_sizes)
    is_length = actual is not None and actual == length and expected in (None, *context.lengths)
    if is_batch != is_length:
        return "batch_dim" if is_batch else "seq_len"
    if varying[0] != varying[1]:
        return "batch_dim" if varying[0] else "seq_len"
    if tokens(miss):
        return "seq_len"
    shape = miss.shape_of(miss.guard.source)
    return "batch_dim" if miss.guard.index == 0 and (shape is None or len(shape) > 1) else "seq_len"


def meaning(miss: Miss) -> str:
    """What a size that is not the batch's is called in a sentence."""
    if tokens(miss):
        return "a number of tokens"
    lengths, shape = set(miss.context.lengths), miss.shape_of(miss.guard.source)
    own = shape is not None and len(shape) == 1 and len(lengths) == 1 and actual_size(miss) not in lengths
    return "a size of its own, not the sequence length" if own else "the sequence length"


def tokens(miss: Miss) -> bool:
    """True when dimension 0 counts tokens: it is rows x length, or the rows of a two-dimensional tile that are not the
    batch's.
    """
    step, actual, expected = miss.event.step, actual_size(miss), entry_size(miss)
    batch, length = miss.context.batch_size_at(step), miss.context.length_at(step)
    if actual is None or not batch or not length:
        return False
    if actual == batch * length:
        return True
    shape = miss.shape_of(miss.guard.source)
    tile = miss.guard.index == 0 and shape is not None and len(shape) == 2
    return tile and actual not in miss.context.batch_sizes and expected not in miss.context.batch_sizes
