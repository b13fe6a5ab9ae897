"""Hold what a check says against torch's own log. Pure: dictionaries in, sentences out."""

from __future__ import annotations

import dataclasses
import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.program import Placed, Program

WARNED = ("warning", "error")
_OTHER_CLASS = re.compile(r"___check_(obj|type)_id|__code__")
"""A block of a class of its own beside others runs through one wrapper of transformers: torch logs one recompile, of
the identity of a class or code object, when the second class is first called."""
_OTHER_CLASS_CAUSES = (
    "shared_code_object",
    "helper_class_identity",
    "per_layer_attr",
    "object_identity",
    "closure_identity",
)
_GUARD = re.compile(r"\n    - (?=\d+/\d+: )")
_RESUMED = re.compile(
    r"Recompiling function (torch_dynamo_resume_in.*___stack|\S+ in \S*/site-packages/transformers/utils/)",
    re.DOTALL,
)
"""What only follows from a graph break: the rest of the function misses what the break left on its stack, and the helper
functions of transformers that the pieces call are compiled on their own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What a check has to say of one fault, as torch's log has it. ``lines`` is None where torch names no line: any
    line of the program will do; it is empty where nobody can name one.
    """

    injector: str
    kinds: tuple[str, ...]
    causes: tuple[str, ...]
    lines: frozenset[tuple[str, int]] | None
    blocks: frozenset[str]
    held_by: frozenset[str]
    steps: frozenset[int]
    alone: frozenset[int]
    """The steps of records that no other fault of the program is in: torch names one guard of each cached entry, and a
    call can miss one entry by this fault and another by that one."""
    advice: str
    log: str

    def show(self) -> str:
        where = (
            "any line of the program"
            if self.lines is None
            else "no line"
            if not self.lines
            else ", ".join(f"{Path(f).name}:{n}" for f, n in sorted(self.lines))
        )
        return (
            f"{'/'.join(self.kinds)} {'/'.join(self.causes)} at {where} in {', '.join(sorted(self.blocks))}, "
            f"steps {sorted(self.steps)}"
        )


class NotConfirmed(Exception):
    """Torch's log does not show the fault that was drawn, or shows something beside it."""


def expected(program: Program, truth: Mapping[str, Any]) -> list[Expected]:
    """What is to be found in a program, by torch's log of it. Raises :class:`NotConfirmed`."""
    if truth.get("broken"):
        raise NotConfirmed(f"the program does not come up: {truth['error']}")
    told: list[list[Mapping[str, Any]]] = [[] for _ in program.placed]
    for event in truth["events"]:
        owners = [n for n, placed in enumerate(program.placed) if _is_of(event, placed)]
        for n in owners:
            told[n].append(event)
        beside = any(event["kind"] == kind for p in program.placed for kind, _ in p.fault.also)
        follows = bool(_RESUMED.search(event["text"])) and any(
            p.fault.kind == "graph_break" for p in program.placed
        )
        special = (
            event["kind"] == "recompile" and _special(program) and bool(_OTHER_CLASS.search(event["text"]))
        )
        if not owners and not beside and not follows and not special:
            raise NotConfirmed(f"beside the fault: {event['kind']}: {event['text'][:600]}")
    ids = [{id(e) for e in events} for events in told]
    others = [set().union(*(o for o in ids if o is not own)) for own in ids]
    return [_expect(*each) for each in zip(program.placed, told, others, strict=True)]


def _special(program: Program) -> bool:
    return any(c.chosen is not None for c in program.drawn.choices)


def _is_of(event: Mapping[str, Any], placed: Placed) -> bool:
    fault = placed.fault
    if event["kind"] == "limit_hit":
        return fault.kind in ("recompile", "limit_hit")
    kinds = {fault.kind} if fault.kind != "limit_hit" else {"recompile"}
    if event["kind"] not in kinds or not re.search(fault.log, event["text"], re.DOTALL):
        return False
    if event["kind"] == "graph_break" and not places("graph_break", event["text"]):
        return True  # met before, and logged without its stack
    return fault.lines != "log" or bool(_own(event, placed))


def _own(event: Mapping[str, Any], placed: Placed) -> set[tuple[str, int]]:
    """The lines of a fault that a record of torch's log names: of a recompile, with the guards that match it."""
    texts = [event["text"]]
    if event["kind"] == "recompile":
        texts = [t for t in _GUARD.split(event["text"])[1:] if re.search(placed.fault.log, t, re.DOTALL)]
    told = [place for text in texts for place in places(event["kind"], text)]
    return {
        (file, line)
        for file, lines in placed.lines.items()
        for line in lines
        if any(line == number and file.endswith(name) for name, number in told)
    }


def _innermost(event: Mapping[str, Any], log: str) -> set[tuple[str, int]]:
    """The innermost line of each guard of a recompile that matches."""
    texts = [t for t in _GUARD.split(event["text"])[1:] if re.search(log, t, re.DOTALL)]
    stacks = [re.findall(r'File "([^"]+)", line (\d+), in ', text) for text in texts]
    return {(stack[-1][0], int(stack[-1][1])) for stack in stacks if stack}


def places(kind: str, text: str) -> list[tuple[str, int]]:
    """(file, line) of each line that a record names; torch cuts long file names off at the left."""
    if kind == "graph_break":
        found = re.search(r"in user code at (.+?):(\d+)\n", text)
        told = [(found[1], found[2])] if found else []
        told += reversed(re.findall(r'File "([^"]+)", line (\d+), in ', text))
        # torch's own files (a polyfill of a Python function) run for a line of somebody else's
        return [(file, int(line)) for file, line in told if "/site-packages/torch/" not in file][:1]
    told = re.findall(r'File "([^"]+)", line (\d+), in ', text)
    told += re.findall(r"  # (\S+\.py):(\d+) in ", text)
    return [(file, int(line)) for file, line in told]


def _expect(placed: Placed, events: Sequence[Mapping[str, Any]], shared: set[int]) -> Expected:
    fault = placed.fault
    if not events:
        raise NotConfirmed(f"torch's log does not show {placed.injector}")
    limit = any(e["kind"] == "limit_hit" for e in events)
    if (fault.kind == "limit_hit") != limit and fault.kind in ("limit_hit", "recompile"):
        raise NotConfirmed(
            f"{placed.injector} is {fault.kind}, and torch's log has {'a' if limit else 'no'} limit hit"
        )
    lines: frozenset[tuple[str, int]] | None = None
    if fault.lines == "log":
        lines = frozenset(place for e in events for place in _own(e, placed))
    elif fault.lines == "none":
        lines = frozenset()
    elif fault.lines == "torch":
        lines = frozenset(place for e in events for place in _innermost(e, fault.log))
    elif fault.lines == "here":
        lines = frozenset((file, line) for file, numbers in placed.here.items() for line in numbers)
    own = [e for e in events if e["kind"] != "limit_hit"] or events
    return Expected(
        injector=placed.injector,
        kinds=("recompile", "limit_hit") if limit else (fault.kind,),
        causes=fault.causes,
        lines=lines,
        blocks=frozenset(
            e["block"] for e in own if e["block"] and (id(e) not in shared or _only(own, shared))
        ),
        held_by=frozenset(placed.blocks),
        steps=frozenset(e["step"] for e in own),
        alone=frozenset(e["step"] for e in own if id(e) not in shared),
        advice=fault.advice,
        log="\n".join(e["text"] for e in own[:2])[:1500],
    )


def compare(
    report: Mapping[str, Any], wanted: Sequence[Expected], program: Program, mended: Callable[[str], bool]
) -> list[str]:
    """What is wrong with a report, in sentences; empty when it is right. ``mended`` says of an injector whether its
    remedy, carried out by hand, ends the fault in torch's log.
    """
    wrong: list[str] = []
    warned = [f for f in report["findings"] if f["severity"] in WARNED]
    left = list(warned)
    for want in wanted:
        own = [f for f in report["findings"] if f["kind"] in want.kinds and f["cause"] in want.causes]
        own = [f for f in own if _placed_right(f, want)] or own
        for finding in own:
            if finding in left:
                left.remove(finding)
        if not own:
            wrong.append(f"missing: {want.show()}")
            continue
        if "limit_hit" in want.kinds and not any(f["kind"] == "limit_hit" for f in own):
            wrong.append(f"{want.injector}: the limit is not told")
        wrong += [f"{want.injector}: {w}" for w in _differences(own, want, program)]
        wrong += [f"{want.injector}: {w}" for w in _remedy(own, want, mended)]
    allowed = {pair for placed in program.placed for pair in placed.fault.also}
    if _special(program):
        allowed |= {("recompile", cause) for cause in _OTHER_CLASS_CAUSES}
    wrong += [f"beside: {show(f)}" for f in left if (f["kind"], f["cause"]) not in allowed]
    return wrong


def _only(events: Sequence[Mapping[str, Any]], shared: set[int]) -> bool:
    return all(id(e) in shared for e in events)


def _placed_right(finding: Mapping[str, Any], want: Expected) -> bool:
    place = (finding["where"]["file"], finding["where"]["line"])
    return not want.lines or place in want.lines


def _differences(own: Sequence[Mapping[str, Any]], want: Expected, program: Program) -> Iterable[str]:
    folder = str(program.path.parent)
    for finding in own:
        where = finding["where"]
        if want.lines is None:
            if not (where["file"] or "").startswith(folder):
                yield f"placed outside of the program: {where['file']}:{where['line']}"
        elif want.lines and not _placed_right(finding, want):
            yield f"placed at {_short(where['file'])}:{where['line']}, not {want.show()}"
    blocks = {
        name
        for f in own
        for glob in f["blocks"]
        for name in program.all_blocks
        if fnmatch.fnmatch(name, glob)
    }
    if not want.blocks <= blocks:
        yield f"blocks {sorted(blocks)}; torch's log has {sorted(want.blocks)}"
    elif not blocks <= want.held_by | want.blocks:
        yield f"blocks {sorted(blocks)}; the fault is in {sorted(want.held_by)}"
    steps = {step for f in own for step in f["steps"] or ()}
    exact = want.kinds[0] in ("recompile", "limit_hit")
    if (exact and not want.alone <= steps <= want.steps) or (steps and not steps & want.steps):
        yield f"steps {sorted(steps)}; torch's log has {sorted(want.steps)}"


def _remedy(own: Sequence[Mapping[str, Any]], want: Expected, mended: Callable[[str], bool]) -> Iterable[str]:
    """A remedy works when the check has proved it, or when a person who follows it ends the fault."""
    remedies = [r for f in own for r in f["remedies"] if r["applicability"] != "diagnosis"]
    if any(r["verified"] for r in remedies):
        return
    if not want.advice:
        yield f"no proved remedy among {[r['summary'] for r in remedies]}"
    elif not any(re.search(want.advice, r["summary"], re.IGNORECASE) for r in remedies):
        yield f"no remedy says {want.advice!r}: {[r['summary'] for r in remedies]}"
    elif not mended(want.injector):
        yield f"the remedy {want.advice!r}, carried out by hand, does not end the fault in torch's log"


def needs_eager(program: Program) -> bool:
    """True where a fault of the program shows only beside the same steps run eager; torch logs nothing of it."""
    return any(p.fault.kind == "numerics" or p.fault.watch for p in program.placed)


def differ(
    program: Program, compiled: Mapping[str, Any], eager: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    """Records of our own: the first step whose loss, or a value that a fault watches, is another compiled than eager."""
    for number, placed in enumerate(program.placed):
        kind, name, same = placed.fault.kind, "", operator.eq
        if kind == "numerics":
            name, same, runs = "loss ", _close, (compiled["losses"], eager["losses"])
        elif placed.fault.watch:
            runs = tuple([values[str(number)] for values in run["watched"]] for run in (compiled, eager))
        else:
            continue
        for step, (one, other) in enumerate(zip(*runs, strict=False), 1):
            if not same(one, other):
                yield {
                    "kind": kind,
                    "step": step,
                    "block": "",
                    "text": f"{name}{one} compiled, {other} eager",
                }
                break


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-3 * max(abs(other), 1e-6)


def compiles_differ(report: Mapping[str, Any], truth: Mapping[str, Any]) -> list[str]:
    """A sentence where the check's compiles are not, step by step, the graphs that Dynamo gave its backend."""
    told = sorted(row["step"] for row in report["compiles"])
    return (
        [] if told == sorted(truth["graphs"]) else [f"compiles at steps {told}, torch's at {truth['graphs']}"]
    )


def claims(report: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each finding with each of its remedies that the check calls verified."""
    return [
        (finding, remedy)
        for finding in report["findings"]
        if finding["severity"] in WARNED
        for remedy in finding["remedies"]
        if remedy["verified"] and remedy["edit"]
    ]


def refuted(
    finding: Mapping[str, Any],
    remedy: Mapping[str, Any],
    program: Program,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> Iterable[str]:
    """What torch's log of the program with a remedy's edit (``after``) says against the check's claims for it."""
    name = f"verified {remedy['edit']!r}"
    if after["error"]:
        yield f"{name}: the step fails in torch's own process: {after['error'][:300]}"
        return
    for run, truth in (("before", before), ("after", after)):
        told = remedy[run]["compiles"]
        if told != len(truth["graphs"]):
            yield f"{name}: {told} compiles {run}, torch's log has {len(truth['graphs'])}"
    faults = [p for p in program.placed if finding["cause"] in p.fault.causes]
    for event in after["events"]:
        kept = event["kind"] == finding["kind"] and event["step"] in finding["steps"]
        if kept and any(_is_of(event, placed) for placed in faults):
            yield f"{name}: torch's log still has {event['kind']} at step {event['step']}: {event['text'][:300]}"
            return


def show(finding: Mapping[str, Any]) -> str:
    """A finding in a line."""
    where = finding["where"]
    return (
        f"{finding['severity']} {finding['kind']} {finding['cause']} at {_short(where['file'])}:{where['line']} "
        f"in {', '.join(finding['blocks'])}, steps {finding['steps']}: {finding['explanation']}"
    )


def _short(file: str | None) -> str:
    return "/".join(Path(file).parts[-2:]) if file else "?"


def mends(before: Placed, after: Placed, truth: Mapping[str, Any]) -> bool:
    """True when torch's log of the mended program no longer has the fault; ``after`` is its place in that program."""
    fault = before.fault
    kinds = {fault.kind, "recompile"} if fault.kind == "limit_hit" else {fault.kind}

    def is_left(event: Mapping[str, Any]) -> bool:
        told = event["kind"] in kinds and re.search(fault.log, event["text"], re.DOTALL)
        return bool(told) and (fault.lines != "log" or bool(_own(event, after)))

    return not truth["error"] and not any(is_left(e) for e in truth["events"])
