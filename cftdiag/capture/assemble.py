"""Records -> events. A state machine without torch: the live tap and the reader of recorded traces feed the same one.

What only a live process knows (block, arguments, how many guards fail) comes as a :class:`Live` beside the record; without it those fields stay
empty and the closest entry is chosen by texts alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cftdiag.capture import reasons as reasons_
from cftdiag.capture import texts
from cftdiag.capture.record import Record
from cftdiag.events import Code, Event, Frame, Guard, Reason

RESUME = "torch_dynamo_resume_in_"

#: Records that are wanted; all others are dropped before anything is read from them.
WANTED = frozenset(
    {
        "artifact",
        "dynamo_start",
        "dynamo_output_graph",
        "create_symbol",
        "create_unbacked_symbol",
        "symbolic_shape_specialization",
        "compilation_metrics",
        "bwd_compilation_metrics",
        "inductor_output_code",
        "aot_forward_graph",
        "aot_backward_graph",
        "aot_joint_graph",
        "inductor_post_grad_graph",
    }
)
GRAPHS = frozenset(
    {"dynamo_output_graph", "inductor_output_code", "aot_forward_graph", "aot_backward_graph", "aot_joint_graph", "inductor_post_grad_graph"}
)
_CACHES = {"aotautograd_cache": "aotautograd", "fx_graph_cache": "fx_graph"}
_OUTCOMES = ("hit", "miss", "bypass")
_LIMIT = "Dynamo recompile limit exceeded"


class Live(Protocol):
    """What the running process knows at the moment of a record. Every method may be asked once per compile and never raises."""

    fullgraph: bool | None
    code: Code | None
    block: str | None
    block_class: str | None
    under_checkpoint: bool

    def arguments(self) -> dict[str, Any]: ...
    def parameters(self) -> dict[str, str]: ...
    def misses(self, found: list[reasons_.Miss]) -> list[tuple[reasons_.Miss, int | None, dict[str, list[str | None]]]]: ...
    def inner_block(self) -> tuple[str, str] | None: ...
    def exception(self) -> tuple[str, str] | None: ...


@dataclasses.dataclass(slots=True)
class _Compile:
    """What is known of one compile until its metrics close it."""

    code: Code | None = None
    block: str | None = None
    block_class: str | None = None
    fullgraph: bool | None = None
    under_checkpoint: bool = False
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    parameters: dict[str, str] = dataclasses.field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    stack: tuple[Frame, ...] = ()
    changed: dict[str, list[str | None]] = dataclasses.field(default_factory=dict)
    pending: bool = False
    graphs: int = 0
    symbols: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    unbacked: bool = False
    error: str | None = None
    error_type: str = ""
    error_block: tuple[str, str] | None = None
    breaks: int = 0

    @property
    def resumed(self) -> bool:
        return self.code is not None and RESUME in self.code.qualname


class Assembler:
    """Turns records into events, one at a time; ``rank``, ``step`` and ``microstep`` are stamped on each."""

    def __init__(self, *, rank: int = 0, keep: Callable[[str, str], None] | None = None) -> None:
        self.rank = rank
        self.step = 0
        self.microstep = 0
        self.owners: dict[str, tuple[str | None, str | None]] = {}
        """Compile id -> (block, class) that compiled it."""
        self._keep = keep
        self._open: dict[str, _Compile] = {}
        self._codes: dict[str, Code] = {}
        self._seen: dict[tuple[Any, ...], set[str]] = {}

    def feed(self, record: Record, live: Live | None = None) -> list[Event]:
        """Events that this record completes, in order; usually none."""
        name = record.name
        if name not in WANTED or (record.compile_id is None and name != "artifact"):
            return []
        if name == "artifact":
            return self._artifact(record, live)
        if name in GRAPHS:
            return self._graph(record)
        if name == "dynamo_start":
            return self._start(record, live)
        if name == "compilation_metrics":
            return self._metrics(record, live)
        if name == "bwd_compilation_metrics":
            return [self._backward(record)]
        self._symbol(record)
        return []

    def close(self) -> list[Event]:
        """Events of compiles that never got their metrics (a killed process, a recorder left in mid-compile)."""
        events: list[Event] = []
        for cid in list(self._open):
            state = self._open.pop(cid)
            if state.pending:
                events.append(self._recompile(cid, state, 0.0))
        return events

    # -- the life of one compile -------------------------------------------------------------------------------------------------------------

    def _start(self, record: Record, live: Live | None) -> list[Event]:
        cid = record.compile_id or ""
        state = self._state(cid, live)
        state.graphs, state.symbols, state.unbacked = 0, [], False
        if state.code is None:
            state.code = _code(record.data)
        if state.code is not None:
            self._codes[cid] = state.code
        if live is not None:
            state.arguments = live.arguments()
            state.parameters = live.parameters()
        self.owners.setdefault(cid, (state.block, state.block_class))
        if state.pending:
            state.pending = False
            return [self._recompile(cid, state, record.time)]
        return []

    def _state(self, cid: str, live: Live | None) -> _Compile:
        state = self._open.setdefault(cid, _Compile())
        if live is not None and state.code is None:
            state.code, state.fullgraph = live.code, live.fullgraph
            state.block, state.block_class, state.under_checkpoint = live.block, live.block_class, live.under_checkpoint
        return state

    def _missed(self, record: Record, live: Live | None) -> None:
        """All reasons of a miss; they wait until it is known whether a recompile or a limit hit follows."""
        cid = record.compile_id or ""
        self._set_reasons(cid, self._state(cid, live), reasons_.split(record.payload or ""), live)

    def _set_reasons(self, cid: str, state: _Compile, found: list[str], live: Live | None) -> None:
        misses = [reasons_.parse(text) for text in found]
        if live is not None:
            counted = live.misses(misses)
            state.arguments, state.parameters = live.arguments(), live.parameters()
        else:
            counted = [(miss, None, {}) for miss in misses]
        if state.code is None:
            # A recorded trace tells the code of a miss only by the entries that missed.
            state.code = next((self._codes[m.entry] for m in misses if m.entry in self._codes), None)
        owners = [self.owners.get(miss.entry or "", (None, None))[0] for miss in misses]
        state.reasons = reasons_.reasons([m for m, _, _ in counted], [n for _, n, _ in counted], state.block, owners)
        best = next((i for i, reason in enumerate(state.reasons) if reason.closest), None)
        if best is not None:
            state.changed = counted[best][2]
            state.stack = counted[best][0].stack
        state.pending = True

    def _recompile(self, cid: str, state: _Compile, time: float, **detail: Any) -> Event:
        return self._event(
            "recompile",
            cid,
            state,
            time,
            reasons=state.reasons,
            guard=_closest(state.reasons),
            stack=state.stack,
            detail={
                "entries": len(state.reasons),
                "changed": state.changed,
                "arguments": state.arguments,
                "parameters": state.parameters,
                "fullgraph": state.fullgraph,
                "under_checkpoint": state.under_checkpoint,
                **detail,
            },
        )

    def _metrics(self, record: Record, live: Live | None) -> list[Event]:
        cid, metrics = record.compile_id or "", record.data
        state = self._state(cid, live)
        self._open.pop(cid, None)
        if state.code is None and metrics.get("co_filename"):
            state.code = Code(qualname=metrics["co_name"], file=metrics["co_filename"], line=metrics["co_firstlineno"])
        failed, reason = metrics.get("fail_type"), metrics.get("fail_reason") or ""
        if _LIMIT in reason or failed == "FailOnRecompileLimitHit":
            return [self._limit(cid, state, record, reason, raised=failed == "FailOnRecompileLimitHit")]
        if failed == "RecompileError":
            # config.error_on_recompile raises before torch traces the reasons: they are in the message only.
            lines = [line.strip().removeprefix("- ") for line in reason.splitlines() if line.strip().startswith("- ")]
            self._set_reasons(cid, state, lines, live)
            return [self._recompile(cid, state, record.time, raised=True)]
        events = []
        if failed:
            events = self._failure(cid, state, failed, reason, record.time)
        return [*events, self._compiled(cid, state, record)]

    def _limit(self, cid: str, state: _Compile, record: Record, reason: str, *, raised: bool) -> Event:
        accumulated = "accumulated_recompile_limit" in reason
        number = reason.partition("currently set to ")[2].partition(")")[0]
        return self._event(
            "limit_hit",
            cid,
            state,
            record.time,
            reasons=state.reasons,
            guard=_closest(state.reasons),
            stack=state.stack,
            detail={
                "limit": int(number) if number.isdigit() else None,
                "limit_kind": "accumulated_recompile_limit" if accumulated else "recompile_limit",
                "raised": raised or bool(state.fullgraph),
                "fullgraph": state.fullgraph,
                "entries": len(state.reasons),
                "changed": state.changed,
                "arguments": state.arguments,
                "parameters": state.parameters,
                "under_checkpoint": state.under_checkpoint,
            },
        )

    def _compiled(self, cid: str, state: _Compile, record: Record) -> Event:
        metrics = record.data
        failed = metrics.get("fail_type")
        status = "failed" if failed else "ok" if metrics.get("has_guarded_code") else "skipped"
        return self._event(
            "compile",
            cid,
            state,
            record.time,
            seconds=_seconds(metrics),
            detail={
                "status": status,
                "fullgraph": state.fullgraph,
                "fail_type": failed,
                "fail_reason": (metrics.get("fail_reason") or None) and str(metrics["fail_reason"])[:2000],
                "ops": metrics.get("graph_op_count"),
                "guards": metrics.get("guard_count"),
                "graphs": 0 if failed else state.graphs,
                "arguments": state.arguments,
                "parameters": state.parameters,
                "symbols": state.symbols,
                "unbacked": state.unbacked,
                "resumed": state.resumed,
                "under_checkpoint": state.under_checkpoint,
                "restarts": len(metrics.get("restart_reasons") or ()),
            },
        )

    def _backward(self, record: Record) -> Event:
        cid, metrics = record.compile_id or "", record.data
        block, cls = self.owners.get(cid, (None, None))
        failed = metrics.get("fail_type")
        return Event(
            kind="compile",
            time=record.time,
            rank=self.rank,
            step=self.step,
            microstep=self.microstep,
            compile_id=cid,
            region="backward",
            block=block,
            block_class=cls,
            code=self._codes.get(cid),
            seconds=_seconds(metrics, "backward"),
            detail={"status": "failed" if failed else "ok", "fail_type": failed, "fail_reason": metrics.get("fail_reason")},
        )

    # -- breaks and errors -------------------------------------------------------------------------------------------------------------------

    def _failure(self, cid: str, state: _Compile, failed: str, reason: str, time: float) -> list[Event]:
        """The events of a compile that raised: a break (always so with fullgraph, which reports none) or an error."""
        text = state.error or reason
        name, body = texts.exception(text) if state.error else (failed, reason)
        name = state.error_type or name or failed
        if texts.is_break(name, body):
            return self._break(cid, state, body or text, name, time, fullgraph=state.fullgraph, inner=state.error_block)
        detail = {"type": name, "message": texts.message(body).strip()[:4000], "phase": _phase(name), "fullgraph": state.fullgraph}
        detail["under_checkpoint"] = state.under_checkpoint
        return [self._event("error", cid, state, time, stack=texts.break_stack(text), detail=detail)]

    def _break(
        self, cid: str, state: _Compile, text: str, name: str, time: float, *, fullgraph: bool | None, inner: tuple[str, str] | None
    ) -> list[Event]:
        said = texts.parse_break(text)
        gb_type = said.gb_type if name == "Unsupported" or said.gb_id else (name or said.gb_type)
        stack = texts.break_stack(text)
        block, cls = inner or (state.block, state.block_class)
        if not self._first_report(cid, gb_type, stack, block):
            return []
        where = {"block": block, "block_class": cls}
        operator = said.operator or ""
        detail = {
            "gb_id": said.gb_id,
            "gb_type": gb_type,
            "reason": said.reason,
            "explanation": said.explanation,
            "hints": list(said.hints),
            "context": said.context,
            "fullgraph": fullgraph,
            "operator": said.operator,
            "in_checkpoint": "checkpoint" in operator,
            "in_autograd_function": "autograd_function" in operator or "autograd.Function" in operator,
            "under_checkpoint": state.under_checkpoint,
            "resumed": state.resumed,
            "exception": name or "Unsupported",
        }
        return [dataclasses.replace(self._event("graph_break", cid, state, time, stack=stack, detail=detail), **where)]

    def _first_report(self, cid: str, gb_type: str, stack: tuple[Frame, ...], block: str | None) -> bool:
        """False when this break is the bubble of one already reported: same type and innermost line, another frame or the same compile.

        A frame that breaks again in a later compile of its own is reported again: the user pays for it again.
        """
        last = stack[-1] if stack else None
        key = (gb_type, last.file if last else None, last.line if last else None, block, self.step, self.microstep)
        seen = self._seen.setdefault(key, set())
        if len(self._seen) > 4096:
            self._seen = {key: seen}
        frame = cid.rpartition("/")[0]
        again = any(c.rpartition("/")[0] == frame for c in seen) and cid not in seen
        new = not seen or again
        if new:
            seen.add(cid)
        return new

    # -- the rest ----------------------------------------------------------------------------------------------------------------------------

    def _artifact(self, record: Record, live: Live | None) -> list[Event]:
        name, cid = record.artifact or "", record.compile_id or ""
        if name == "recompile_reasons":
            self._missed(record, live)
        elif name == "dynamo_graph_break_reason":
            state = self._state(cid, live)
            state.breaks += 1
            inner = live.inner_block() if live is not None else None
            kind = "Unsupported"
            if live is not None:
                kind = (live.exception() or (kind, ""))[0]
            return self._break(cid, state, record.payload or "", kind, record.time, fullgraph=False, inner=inner)
        elif name == "dynamo_error":
            state = self._state(cid, live)
            state.error = record.payload or ""
            if live is not None:
                state.error_block = live.inner_block()
                state.error_type = (live.exception() or ("", ""))[0]
        else:
            return self._cache(record, name)
        return []

    def _cache(self, record: Record, name: str) -> list[Event]:
        prefix, _, outcome = name.rpartition("_")
        cache = _CACHES.get(prefix)
        if cache is None or outcome not in _OUTCOMES:
            return []
        said = _json(record.payload)
        detail = {
            "cache": cache,
            "outcome": outcome,
            "key": said.get("key"),
            "reason": said.get("cache_bypass_reason") or said.get("cache_bypass_exception_type"),
        }
        return [self._owned("cache", record, detail)]

    def _graph(self, record: Record) -> list[Event]:
        if record.name == "dynamo_output_graph":
            self._open.setdefault(record.compile_id or "", _Compile()).graphs += 1
        if self._keep is None or not record.payload:
            return []
        digest = hashlib.sha256(record.payload.encode()).hexdigest()
        self._keep(digest, record.payload)
        return [dataclasses.replace(self._owned("graph_output", record, {"name": record.name}), payloads={record.name: digest})]

    def _symbol(self, record: Record) -> None:
        state = self._open.setdefault(record.compile_id or "", _Compile())
        data = record.data if isinstance(record.data, Mapping) else {}
        if record.name == "create_unbacked_symbol":
            state.unbacked = True
        elif len(state.symbols) < 64:
            wanted = ("symbol", "val", "value", "vr", "source", "sources", "reason")
            state.symbols.append({"record": record.name, **{k: data[k] for k in wanted if k in data}})

    def _owned(self, kind: str, record: Record, detail: Mapping[str, Any]) -> Event:
        cid = record.compile_id or ""
        state = self._open.get(cid)
        if state is None:
            block, cls = self.owners.get(cid, (None, None))
            state = _Compile(code=self._codes.get(cid), block=block, block_class=cls)
        return self._event(kind, cid, state, record.time, detail=detail)

    def _event(self, kind: str, cid: str, state: _Compile, time: float, **values: Any) -> Event:
        return Event(
            kind=kind,
            time=time,
            rank=self.rank,
            step=self.step,
            microstep=self.microstep,
            compile_id=cid or None,
            region=state.code.qualname.rpartition(".")[2] if state.resumed and state.code else "forward",
            block=state.block,
            block_class=state.block_class,
            code=state.code,
            **values,
        )


def _closest(found: tuple[Reason, ...]) -> Guard | None:
    return next((reason.guard for reason in found if reason.closest), None)


def _code(data: Any) -> Code | None:
    """The compiled code of a recorded ``dynamo_start``: the last frame of its stack."""
    stack = data.get("stack") if isinstance(data, Mapping) else None
    if not stack:
        return None
    last = stack[-1]
    return Code(qualname=str(last.get("name")), file=str(last.get("filename")), line=int(last.get("line") or 0))


def _seconds(metrics: Mapping[str, Any], total: str = "total") -> dict[str, float]:
    """Seconds by phase. ``dynamo`` is the frame's time outside the backend; ``aot`` the backend's outside Inductor."""
    whole = float(metrics.get("entire_frame_compile_time_s") or (metrics.get("duration_us") or 0) / 1e6)
    inductor = float(metrics.get("inductor_cumulative_compile_time_us") or 0) / 1e6
    found = {total: whole}
    if inductor:
        found["inductor"] = inductor
    if total == "total":
        backend = float(metrics.get("backend_compile_time_s") or 0)
        found["dynamo"] = max(0.0, whole - backend)
        found["aot"] = max(0.0, backend - inductor)
    return found


def _phase(name: str) -> str:
    return "backend" if "Backend" in name else "dynamo"


def _json(payload: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(payload or "")
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}
