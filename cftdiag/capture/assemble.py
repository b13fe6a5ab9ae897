"""Records -> events. A state machine without torch: the live tap and the reader of recorded traces feed the
same one.

What only a live process knows (block, arguments, how many guards fail) comes as a :class:`Live` beside the
record; without it those fields stay empty and the closest entry is chosen by texts alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cftdiag.capture import cache_parts, capture_ends, recompile_reasons, torch_texts
from cftdiag.capture.compile_state import (
    Compile,
    Live,
    closest_guard,
    recorded_code,
    recorded_line,
    seconds_by_phase,
)
from cftdiag.capture.record import CACHE_ARTIFACTS, GRAPHS, WANTED, Record
from cftdiag.details import CacheDetail, CompileDetail, Detail, GraphDetail, LimitDetail, MissDetail, Symbol
from cftdiag.events import Code, Event

_LIMIT = "Dynamo recompile limit exceeded"
_SYMBOLS = 64
_M = TypeVar("_M", bound=MissDetail)


class Assembler:
    """Turns records into events, one at a time; ``rank``, ``step`` and ``microstep`` are stamped on each."""

    def __init__(
        self,
        *,
        rank: int = 0,
        keep: Callable[[str, str], None] | None = None,
        cache_notes: cache_parts.Notes | None = None,
    ) -> None:
        self.rank = rank
        self.step = 0
        self.microstep = 0
        self.owners: dict[str, tuple[str | None, str | None]] = {}
        """Compile id -> (block, class) that compiled it."""
        self._keep = keep
        self._open: dict[str, Compile] = {}
        self._codes: dict[str, Code] = {}
        self._reported = capture_ends.Reported()
        self._lookups = cache_parts.Lookups(cache_notes)

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
        """Recompiles of which nothing more came (a killed process, a recorder left in mid-compile)."""
        left = [(cid, state) for cid, state in self._open.items() if state.missed]
        self._open.clear()
        return [self._recompile(cid, state, state.time) for cid, state in left]

    # -- the life of one compile -----------------------------------------------------------------------------

    def _start(self, record: Record, live: Live | None) -> list[Event]:
        cid = record.compile_id or ""
        state = self._state(cid, live)
        state.restart()
        if state.code is None or live is None:
            state.code = recorded_code(record.data) or state.code
        if state.code is not None:
            self._codes[cid] = state.code
        if live is not None:
            state.look(live)
        self.owners.setdefault(cid, (state.block, state.block_class))
        if not state.missed:
            return []
        state.missed = False
        return [self._recompile(cid, state, record.time)]

    def _state(self, cid: str, live: Live | None) -> Compile:
        state = self._open.setdefault(cid, Compile())
        if live is not None and state.code is None:
            state.code, state.fullgraph = live.code, live.fullgraph
            state.block, state.block_class, state.under_checkpoint = (
                live.block,
                live.block_class,
                live.under_checkpoint,
            )
        return state

    def _missed(self, record: Record, live: Live | None, found: list[str]) -> Compile:
        """Read all reasons of a miss; they wait until it is known whether a recompile or a limit hit follows."""
        cid = record.compile_id or ""
        state = self._state(cid, live)
        misses = [recompile_reasons.parse(text) for text in found]
        if live is not None:
            counted = live.misses(misses)
            state.look(live)
        else:
            counted = [(miss, None, {}) for miss in misses]
        if state.code is None:
            # A recorded trace tells the code of a miss only by the entries that missed.
            state.code = next((self._codes[m.entry] for m in misses if m.entry in self._codes), None)
        if state.code is not None:
            counted = [
                (recompile_reasons.in_file(miss, state.code.file), count, changed)
                for miss, count, changed in counted
            ]
        owners = [self.owners.get(miss.entry or "", (None, None))[0] for miss in misses]
        state.reasons = recompile_reasons.ranked(
            [m for m, _, _ in counted], [n for _, n, _ in counted], state.block, owners
        )
        best = next((i for i, reason in enumerate(state.reasons) if reason.closest), None)
        if best is not None:
            state.stack, state.changed = counted[best][0].stack, counted[best][2]
            if live is not None:
                state.guard_block = live.guard_block(counted[best][0].guard)
        state.missed, state.time = True, record.time
        return state

    def _recompile(self, cid: str, state: Compile, time: float, *, raised: bool = False) -> Event:
        return self._miss_event("recompile", cid, state, time, _missed(MissDetail, state, raised=raised))

    def _miss_event(self, kind: str, cid: str, state: Compile, time: float, detail: MissDetail) -> Event:
        guard = closest_guard(state.reasons)
        return self._event(
            kind, cid, state, time, reasons=state.reasons, guard=guard, stack=state.stack, detail=detail
        )

    def _metrics(self, record: Record, live: Live | None) -> list[Event]:
        cid, metrics = record.compile_id or "", record.data
        state = self._state(cid, live)
        if state.code is None and metrics.get("co_filename"):
            state.code = Code(
                qualname=metrics["co_name"], file=metrics["co_filename"], line=metrics["co_firstlineno"]
            )
        failed, reason = metrics.get("fail_type"), str(metrics.get("fail_reason") or "")
        events: list[Event] = []
        if failed == "FailOnRecompileLimitHit" or _LIMIT in reason:
            known = None if live is None else live.limit()
            name, limit = known or _limit(reason)
            detail = _missed(
                LimitDetail,
                state,
                raised=failed == "FailOnRecompileLimitHit" or bool(state.fullgraph),
                limit=limit,
                limit_kind=name,
                thread=None if live is None else live.thread,
            )
            events.append(self._miss_event("limit_hit", cid, state, record.time, detail))
        elif failed == "RecompileError":
            # config.error_on_recompile raises before torch traces the reasons: they are in the message only.
            self._missed(
                record,
                live,
                [line.strip()[2:] for line in reason.splitlines() if line.strip().startswith("- ")],
            )
            events.append(self._recompile(cid, state, record.time, raised=True))
        else:
            if failed:
                events += self._failure(cid, state, failed, reason, record.time)
            events.append(self._compiled(cid, state, record))
        self._open.pop(cid, None)
        return events

    def _compiled(self, cid: str, state: Compile, record: Record) -> Event:
        metrics = record.data
        failed, reason = metrics.get("fail_type"), metrics.get("fail_reason")
        detail = CompileDetail(
            status="failed" if failed else "ok" if metrics.get("has_guarded_code") else "skipped",
            fullgraph=state.fullgraph,
            fail_type=failed,
            fail_reason=str(reason)[:2000] if reason else None,
            ops=metrics.get("graph_op_count"),
            guards=metrics.get("guard_count"),
            # Without kept payloads the graphs themselves are not traced: printing them costs more than all
            # else.
            graphs=0 if failed else state.graphs or int(_made_graph(metrics)),
            arguments=state.arguments,
            argument_names=state.argument_names,
            module=state.module_name,
            parameters=state.parameters,
            symbols=tuple(state.symbols),
            unbacked=state.unbacked,
            resumed=state.resumed,
            under_checkpoint=state.under_checkpoint,
            restarts=len(metrics.get("restart_reasons") or ()),
            cudagraph_skip=metrics.get("cudagraph_skip_reason"),
        )
        return self._event(
            "compile", cid, state, record.time, seconds=seconds_by_phase(metrics), detail=detail
        )

    def _backward(self, record: Record) -> Event:
        metrics = record.data
        detail = CompileDetail(
            status="failed" if metrics.get("fail_type") else "ok",
            fail_type=metrics.get("fail_type"),
            fail_reason=metrics.get("fail_reason"),
            cudagraph_skip=metrics.get("cudagraph_skip_reason"),
        )
        event = self._owned("compile", record, detail)
        return dataclasses.replace(event, region="backward", seconds=seconds_by_phase(metrics, "backward"))

    # -- what ended a capture --------------------------------------------------------------------------------

    def _broke(self, record: Record, live: Live | None) -> list[Event]:
        """A break that Dynamo goes on from (never with fullgraph, where there is only the exception)."""
        cid = record.compile_id or ""
        state = self._state(cid, live)
        state.breaks += 1
        name = "" if live is None else live.exception()
        inner = None if live is None else live.inner_block()
        return self._break(cid, state, record.payload or "", name, record.time, inner, fullgraph=False)

    def _raised(self, record: Record, live: Live | None) -> None:
        state = self._state(record.compile_id or "", live)
        state.error = record.payload or ""
        if live is not None:
            state.error_type, state.error_block = live.exception(), live.inner_block()

    def _failure(self, cid: str, state: Compile, failed: str, reason: str, time: float) -> list[Event]:
        """The events of a compile that raised: a break (the only trace of one with fullgraph) or an error."""
        read, text = torch_texts.exception(state.error) if state.error else ("", reason)
        name = state.error_type or read or failed
        if not torch_texts.is_break(name, text):
            detail = capture_ends.error_detail(text, name, state)
            return [
                self._event("error", cid, state, time, stack=torch_texts.break_stack(text), detail=detail)
            ]
        fullgraph = state.fullgraph
        if fullgraph is None:
            # A recorded trace does not tell; without fullgraph a break is logged before it is raised.
            fullgraph = state.breaks == 0
        return self._break(cid, state, text, name, time, state.error_block, fullgraph=fullgraph)

    def _break(
        self,
        cid: str,
        state: Compile,
        text: str,
        name: str,
        time: float,
        inner: tuple[str, str | None] | None,
        *,
        fullgraph: bool,
    ) -> list[Event]:
        detail = capture_ends.break_detail(text, name, state, fullgraph)
        stack = torch_texts.break_stack(text)
        block, cls = inner or (state.block, state.block_class)
        if not self._reported.first(cid, detail.gb_type or "", stack, block, self.step, self.microstep):
            return []
        event = self._event("graph_break", cid, state, time, stack=stack, detail=detail)
        return [dataclasses.replace(event, block=block, block_class=cls)]

    # -- the rest --------------------------------------------------------------------------------------------

    def _artifact(self, record: Record, live: Live | None) -> list[Event]:
        name = record.artifact or ""
        if name == "recompile_reasons":
            self._missed(record, live, recompile_reasons.split(record.payload or ""))
        elif name == "dynamo_graph_break_reason":
            return self._broke(record, live)
        elif name == "dynamo_error":
            self._raised(record, live)
        elif name in CACHE_ARTIFACTS:
            cache, outcome = CACHE_ARTIFACTS[name]
            return [self._owned("cache", record, self._looked_up(cache, outcome, record))]
        return []

    def _looked_up(self, cache: str, outcome: str, record: Record) -> CacheDetail:
        said = _json(record.payload)
        parts = cache_parts.read(said.get("components"))
        near = self._lookups.add(cache, record.compile_id or "", parts, said.get("key"))
        missed = outcome == "miss" and near is not None
        return CacheDetail(
            cache=cache,
            outcome=outcome,
            key=said.get("key"),
            reason=_bypass(said),
            parts=cache_parts.grouped(parts) or None,
            nearest=near[0] if missed and near else None,
            differs=cache_parts.shortened(near[1]) if missed and near else None,
        )

    def _graph(self, record: Record) -> list[Event]:
        if record.name == "dynamo_output_graph":
            self._open.setdefault(record.compile_id or "", Compile()).graphs += 1
        if self._keep is None or not record.payload:
            return []
        digest = hashlib.sha256(record.payload.encode()).hexdigest()
        self._keep(digest, record.payload)
        event = self._owned("graph_output", record, GraphDetail(name=record.name))
        return [dataclasses.replace(event, payloads={record.name: digest})]

    def _symbol(self, record: Record) -> None:
        state = self._open.setdefault(record.compile_id or "", Compile())
        data = record.data if isinstance(record.data, Mapping) else {}
        if record.name == "create_unbacked_symbol":
            state.unbacked = True
        wanted = ("symbol", "val", "value", "vr", "source", "sources", "reason")
        fixed = record.name == "symbolic_shape_specialization"
        symbol = Symbol(
            record=record.name,
            line=recorded_line(data.get("user_stack")) if fixed else None,
            **{k: data[k] for k in wanted if k in data},
        )
        same = [known for known in state.symbols if known.record == record.name]
        if symbol not in same and len(same) < _SYMBOLS:
            state.symbols.append(symbol)

    def _owned(self, kind: str, record: Record, detail: Detail) -> Event:
        """An event of a compile that may be over (a backward, a cache): it belongs to the block that
        compiled.
        """
        cid = record.compile_id or ""
        state = self._open.get(cid)
        if state is None:
            block, cls = self.owners.get(cid, (None, None))
            state = Compile(code=self._codes.get(cid), block=block, block_class=cls)
        return self._event(kind, cid, state, record.time, detail=detail)

    def _event(self, kind: str, cid: str, state: Compile, time: float, **values: Any) -> Event:
        return Event(
            kind=kind,
            time=time,
            rank=self.rank,
            step=self.step,
            microstep=self.microstep,
            compile_id=cid or None,
            region=state.region,
            block=state.block,
            block_class=state.block_class,
            code=state.code,
            **values,
        )


def _missed(cls: type[_M], state: Compile, *, raised: bool, **limit: Any) -> _M:
    """The detail of a recompile or a limit hit from what is known of the compile."""
    return cls(
        entries=len(state.reasons),
        changed=state.changed,
        guard_block=state.guard_block,
        arguments=state.arguments,
        parameters=state.parameters,
        self_name=state.self_name,
        free=state.free,
        forward=state.forward,
        caller=state.caller,
        fullgraph=state.fullgraph,
        under_checkpoint=state.under_checkpoint,
        raised=raised,
        **limit,
    )


def _limit(reason: str) -> tuple[str, int | None]:
    """(name, value) of the limit in torch's text, which a fullgraph failure does not have."""
    name = "accumulated_recompile_limit" if "accumulated_recompile_limit" in reason else "recompile_limit"
    number = reason.partition("currently set to ")[2].partition(")")[0]
    return name, int(number) if number.isdigit() else None


def _bypass(said: Mapping[str, Any]) -> str | None:
    """Why a cache was not used, in torch's words."""
    found = next(
        (
            said[k]
            for k in ("cache_bypass_reason", "cache_bypass_exception", "cache_bypass_exception_type")
            if said.get(k)
        ),
        None,
    )
    return None if found is None else str(found)[:500]


def _json(payload: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(payload or "")
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


def _made_graph(metrics: Mapping[str, Any]) -> bool:
    """True when Dynamo gave its backend a graph. One without an operator is one too, where it has something to
    return (a size that the code behind a break needs): then there are nodes beside its inputs.
    """
    nodes, inputs = metrics.get("graph_node_count"), metrics.get("graph_input_count")
    returns = nodes is not None and inputs is not None and nodes > inputs
    return bool(metrics.get("graph_op_count")) or returns
