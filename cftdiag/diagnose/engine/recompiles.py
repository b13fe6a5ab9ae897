"""From recompiles and limit hits to drafts: the guard of the closest entry, its cause, and which blocks now
run eager.
"""

from __future__ import annotations

from typing import Any

from cftdiag import guards
from cftdiag.conditions import MISSING, Condition
from cftdiag.details import LimitDetail
from cftdiag.diagnose.causes import by_holder, global_state, sizes
from cftdiag.diagnose.engine import graph_breaks, places, registry
from cftdiag.diagnose.engine.context import Context
from cftdiag.diagnose.engine.draft import Draft, Drafts, region
from cftdiag.diagnose.engine.miss import History, Miss
from cftdiag.events import Event
from cftdiag.findings import Where

_SHAPES = tuple(cause.key for cause in sizes.CAUSES)


def gather(history: History, context: Context, drafts: Drafts) -> None:
    """Draft every recompile and limit hit; what only follows from a graph break becomes that break's
    evidence.
    """
    lost: list[tuple[Event, str]] = []
    for miss in history.misses:
        if _follows_break(miss, drafts):
            lost.append((miss.event, miss.guard.text))
            if miss.event.kind == "limit_hit":
                for draft in graph_breaks.add_consequences(drafts, [(miss.event, miss.guard.text)]):
                    _limit(miss, draft.cause, context, drafts)
            continue
        cause = registry.of_miss(miss)
        if miss.event.kind == "limit_hit":
            _limit(miss, cause, context, drafts)
        else:
            _recompile(miss, cause, context, drafts)
    graph_breaks.add_consequences(drafts, lost)


def _follows_break(miss: Miss, drafts: Drafts) -> bool:
    """True for a miss on a value that a graph break put there: on the stack of the resumed function, or a
    local that is no argument.
    """
    root = miss.guard.root
    if root.startswith("___stack"):
        return True
    if not drafts.of("graph_break"):
        return False
    if miss.history.helper(miss) and any(miss.block in d.blocks for d in drafts.of("graph_break")):
        if _set_later(miss):
            return False
        return miss.guard.kind not in ("size", "shape") or not _of_the_batch(miss)
    if not miss.resumed or root in ("", "G") or miss.on_module():
        return False
    code = miss.event.code
    if code is None or root in miss.history.parameters.get(code.file, ()):
        return False
    return miss.guard.kind not in ("size", "shape", "stride", "requires_grad", "dtype") or not _of_the_batch(
        miss
    )


def _set_later(miss: Miss) -> bool:
    """True for a setting of the block or of a module of Python that was another when a step before compiled the code:
    it would be missed in a whole block too.
    """
    made = miss.history.compiles.get(miss.entry or "")
    if miss.guard.kind in ("identity", "type") and not miss.guard.path:
        return False  # the block itself, or a function: who enters a helper frame
    settings = ("value", "none", "attribute", "length", "keys", "contains", "identity", "type")
    tensors = ("dtype", "device", "rank", "size", "stride", "requires_grad", "tensor_type")
    return (
        (miss.on_module() or miss.guard.root == "G")
        and miss.guard.kind in (*settings, *tensors)
        and made is not None
        and made.step < miss.event.step
    )


def _of_the_batch(miss: Miss) -> bool:
    actual, step = sizes.actual_size(miss), miss.event.step
    known = (miss.context.length_at(step), miss.context.batch_size_at(step))
    return miss.guard.kind in ("requires_grad", "dtype", "stride") or actual is None or actual in known


def _recompile(miss: Miss, cause: str, context: Context, drafts: Drafts) -> None:
    key: tuple[Any, ...] = (guards.pretty(miss.guard.source),)
    if cause == "size_specialized":  # two lines that fix one size are mended apart
        where = _where(miss, cause)
        key = where.file, where.line
    elif cause in (*_SHAPES, "kv_cache", "shared_code_object"):
        key = ()
    draft, new = drafts.get("recompile", cause, "warning", *key)
    _fill(draft, miss, cause, context, new)
    name = region(miss.event)
    draft.seen(miss.event, [name] if name else [])
    values = miss.history.values(miss)
    if (
        new
        and cause in ("seq_len", "batch_dim")
        and {0, 1} & {draft.facts[k] for k in ("expected", "actual")}
    ):
        draft.notes.append("A size of 0 or 1 is compiled separately, with dynamic shapes too.")
    if new and miss.guard.kind in ("value", "length") and len(values) > 2:
        draft.notes.append(f"Values met: {', '.join(values[:6])}{', ...' if len(values) > 6 else ''}.")
    if context.ac != "none" or miss.event.missed.under_checkpoint:
        draft.facts["entries"] = max(
            draft.facts.get("entries", 0),
            (miss.event.missed.entries or len(miss.event.reasons)) + 1,
        )


def _limit(miss: Miss, cause: str, context: Context, drafts: Drafts) -> None:
    draft, new = drafts.get(
        "limit_hit", cause, "error", miss.event.code and (miss.event.code.file, miss.event.code.line)
    )
    _fill(draft, miss, cause, context, new)
    if not new:
        draft.seen(miss.event)
        return
    name = region(miss.event)
    kind = list(miss.history.sharing(miss)) or list(context.same_kind(name)) or ([name] if name else [])
    never = [fqn for fqn in kind if context.graphs is not None and not context.graphs.get(fqn)]
    draft.seen(miss.event, never or kind)
    hit = miss.event.limited
    limit = hit.limit or len(miss.event.reasons) or context.limit
    which = f"{hit.limit_kind or 'recompile_limit'} ({limit})"
    if hit.raised:
        draft.notes.append(f"{which} was hit, which is an error with fullgraph=True.")
    elif kind:
        when = "" if never else " whenever none of the cached variants fits"
        draft.notes.append(
            f"{which} was hit: {len(never or kind)} of {len(kind)} blocks now run eager{when}."
        )


def _fill(draft: Draft, miss: Miss, cause: str, context: Context, new: bool) -> None:
    guard = miss.guard
    if new:
        draft.where = _where(miss, cause)
        draft.guard = f"type mismatch: {guard.text}" if guard.kind == "tensor_type" else guard.text or None
        draft.facts = facts(miss, cause, context)
        draft.remedies, draft.only_own = by_holder.own(miss, cause)
        if guard.kind == "alias":
            draft.says = (
                "`{argument}` is given twice in this call; the code was compiled for a tensor in each place."
                if guard.negated
                else "`{argument}` was given in two places when the code was compiled; this call gives two tensors."
            )
    step = miss.event.step
    name = region(miss.event)
    draft.note(
        f"step {step}{f', {name}' if name else ''}: {guard.text}"
        + (f", now {guard.actual!r}" if guard.knows("actual") and "actual" not in guard.text else "")
    )


def _where(miss: Miss, cause: str) -> Where:
    fixed = sizes.specialization(miss) if cause == "size_specialized" else None
    if fixed is not None and fixed.line is not None:
        return places.of(fixed.line)
    frame, forward = places.site(miss.event), miss.event.missed.forward
    own = frame is not None and places.rank(frame) < 2
    if not own and forward is not None:
        # the guard has no line: the block's own code says more than a base class's, a decorator's or torch's
        return places.of(forward)
    if not own and miss.event.missed.caller is not None:
        return places.of(miss.event.missed.caller)
    if not own and miss.event.code is not None:
        code = miss.event.code
        return Where(file=code.file, line=code.line, function=code.qualname)
    return places.place(miss.event)


def facts(miss: Miss, cause: str, context: Context) -> dict[str, Any]:
    """What the texts of a cause may name: the user's own argument, attribute, values and numbers."""
    guard = miss.guard
    expected: Any = guard.expected
    actual: Any = guard.actual
    if cause in _SHAPES and cause != "stride":
        expected, actual = sizes.entry_size(miss), sizes.actual_size(miss)
        expected = guard.expected if expected is None else expected
        actual = guard.actual if actual is None else actual
    name = guards.pretty(guard.source)
    hit = miss.event.detail
    limit = (hit.limit if isinstance(hit, LimitDetail) else None) or context.limit
    kind = context.same_kind(miss.block)
    found: dict[str, Any] = {
        "argument": name or None,
        "attribute": name or None,
        "name": name.rpartition(".")[2] or None,
        "holder": (name.rpartition(".")[0] or None) if by_holder.takes_a_buffer(miss) else None,
        "dim": guard.index,
        "expected": _quoted(guard, expected),
        "actual": _quoted(guard, actual) or guard.value_type,
        "guard": guard.text,
        "added": guards.inductor_place(miss.added) or None,
        "multiple": guard.multiple,
        "limit": limit,
        "name_of_code": miss.event.code.qualname if miss.event.code else None,
        "more": max(2 * limit, 2 * len(kind)),
        "dynamic_source": _dynamic_source(miss),
    }
    if cause == "duck_shape":
        found["static_source"] = sizes.kept(miss)
    code = miss.event.code
    if cause == "shared_code_object" and code is not None and not places.installed(code.file):
        found["own_wrapper"] = code.qualname  # nobody moves a decorator of a library
    if cause == "size_specialized":
        found["fixed"] = sizes.fixed(miss)
    elif cause == "stride":
        found["layout"] = sizes.layout(guard)
    elif cause == "seq_len":
        found["meaning"] = sizes.meaning(miss)
    if cause in ("none_vs_tensor", "first_call_latch"):
        found["expected"] = found["expected"] or (
            "None"
            if guard.kind == "none" and not guard.negated
            else "missing"
            if guard.kind == "attribute"
            else "a tensor"
        )
        found["actual"] = "None" if guard.value_type == "NoneType" else "given"
    elif cause == "grad_mode":
        now = guard.actual if isinstance(guard.actual, bool) else None
        words = ("in one mode", "in the other") if now is None else ("off", "on") if now else ("on", "off")
        found["expected"], found["actual"] = words
    elif cause == "global_state":
        found["state"], found["setting"] = global_state.changed(guard), global_state.setting(guard)
    elif cause == "rank_change" and isinstance(actual, int):
        found["actual"] = f"{actual} dimension{'s' if actual != 1 else ''}"
    elif cause == "tensor_type" and guard.value_type:
        found["actual"] = guard.value_type
    elif cause == "optimizer_lr_float" and name.startswith("self."):
        found["attribute"] = "optimizer." + name.removeprefix("self.")
    elif cause == "closure_identity":
        found["argument"], found["change"] = guards.pretty(guard.function) or None, _closure(guard, found)
    return found


def _dynamic_source(miss: Miss) -> str | None:
    """What ``dynamic_sources`` has to name: torch's own source, with the frame's names and not the block's."""
    known = miss.event.guard
    guard = known.condition if known is not None else miss.guard
    return None if guard.root in ("", "G") else f"L['{guard.root}']{guard.path.split('.size()')[0]}"


def _quoted(guard: Condition, value: Any) -> str | int | None:
    return repr(value) if guard.kind == "value" and isinstance(value, str) else _show(value)


def _closure(guard: Condition, known: dict[str, Any]) -> str:
    """What is another in a function: itself, or what it carries."""
    if guard.kind not in ("length", "value") or known["expected"] is None:
        return "is another function than when the code was compiled"
    carries, unit = ("something", " long") if guard.kind == "length" else ("a value", "")
    now = "" if known["actual"] is None else f" and is {known['actual']}{unit} now"
    return (
        f"carries {carries} in its closure that was {known['expected']}{unit} when the code was compiled{now}"
    )


def _show(value: Any) -> str | int | None:
    """A value for a text; None when it is unknown."""
    if value is MISSING:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value)
