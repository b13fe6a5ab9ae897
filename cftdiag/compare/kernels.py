"""Two reports of generated code: graphs by kind of block, direction and shape; kernels by what they compute."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cftdiag.compare.change import Change, Effect
from cftdiag.compare.checks import compare_environments
from cftdiag.compare.findings import compare_findings

Row = Mapping[str, Any]

#: Share by which a number of bytes may differ and still be the same.
_TOLERANCE = 0.001


def compare_kernels(before: Row, after: Row) -> list[Change]:
    """Kernels new and gone, their registers, spills and bytes; library calls; the totals of each graph."""
    changes = [
        Change(section="conditions", what=name, before=before.get(name), after=after.get(name))
        for name in ("model", "target", "predicted", "shapes")
        if before.get(name) != after.get(name)
    ]
    a, b = _graphs(before), _graphs(after)
    for key in dict.fromkeys([*a, *b]):
        name = " ".join(part for part in key[:2] if part) + (f" {key[2] + 1}" if key[2] else "")
        if key not in a or key not in b:
            changes.append(_presence(f"graph of {name}", key in a, key in b, "warning"))
            continue
        changes += _graph(name, a[key], b[key])
    changes += compare_findings(before.get("findings") or (), after.get("findings") or ())
    return [*changes, *compare_environments(before["environment"], after["environment"])]


def _graphs(report: Row) -> dict[tuple[str, str, int], Row]:
    """Graphs by kind of block, direction and the order in which they were compiled."""
    found: dict[tuple[str, str, int], Row] = {}
    for block in report["blocks"]:
        for graph in block["graphs"]:
            number = sum(k[:2] == (str(block["kind"]), str(graph["direction"])) for k in found)
            found[str(block["kind"]), str(graph["direction"]), number] = graph
    return found


def _graph(name: str, a: Row, b: Row) -> Iterator[Change]:
    for field, of, severity in (
        ("kernels", lambda g: len(g["kernels"]), "info"),
        ("library calls", lambda g: len(g["externs"]), "info"),
        ("bytes moved", _moved, "warning"),
        ("peak bytes", lambda g: g.get("peak_bytes"), "warning"),
        ("lower bound (us)", _bound, "warning"),
    ):
        yield from _number(f"graph of {name}", field, of(a), of(b), severity)
    yield from _calls(name, a, b)
    yield from _kernels(name, a["kernels"], b["kernels"])


def _moved(graph: Row) -> int:
    own = sum(int(k["read_bytes"]) + int(k["write_bytes"]) for k in graph["kernels"])
    return own + sum(int(e.get("bytes") or 0) for e in graph["externs"])


def _bound(graph: Row) -> float | None:
    rows = [k.get("roofline") for k in (*graph["kernels"], *graph["externs"])]
    known = [float(r["microseconds"]) for r in rows if r]
    return round(sum(known), 3) if known else None


def _calls(name: str, a: Row, b: Row) -> Iterator[Change]:
    for op in dict.fromkeys(str(e["op"]) for e in (*a["externs"], *b["externs"])):
        counts = [sum(e["op"] == op for e in g["externs"]) for g in (a, b)]
        if counts[0] != counts[1]:
            yield Change(
                section="kernels", what=f"{op} in {name}", field="calls", before=counts[0], after=counts[1]
            )


def _kernels(name: str, before: Sequence[Row], after: Sequence[Row]) -> Iterator[Change]:
    left, right = list(before), list(after)
    pairs = []
    for key_of in (_text_key, _work_key, _operators):
        for a in list(left):
            b = next((k for k in right if key_of(k) == key_of(a)), None)
            if b is not None:
                pairs.append((a, b))
                left.remove(a)
                right.remove(b)
    for a, b in pairs:
        yield from _kernel(f"{_base(b)} in {name}", a, b)
    for kernel in left:
        yield _presence(f"{_base(kernel)} in {name}", True, False, "info")
    for kernel in right:
        yield _presence(f"{_base(kernel)} in {name}", False, True, "info")


def _text_key(kernel: Row) -> str:
    """The same work on the same bytes."""
    return json.dumps([_work_key(kernel), kernel["read_bytes"], kernel["write_bytes"]])


def _work_key(kernel: Row) -> str:
    lines = [[w.get("function"), w.get("code")] for w in kernel.get("lines") or ()]
    return json.dumps([_operators(kernel), lines])


def _operators(kernel: Row) -> str:
    return json.dumps([kernel["category"], list(kernel["aten"])])


def _base(kernel: Row) -> str:
    """``triton_per_fused_add_mul`` of ``triton_per_fused_add_mul_3``: the number is of the graph alone."""
    return re.sub(r"_\d+$", "", str(kernel["name"]))


def _kernel(name: str, a: Row, b: Row) -> Iterator[Change]:
    if a["category"] != b["category"]:
        yield Change(section="kernels", what=name, field="kind", before=a["category"], after=b["category"])
    moved: Callable[[Row], int] = lambda k: int(k["read_bytes"]) + int(k["write_bytes"])  # noqa: E731
    yield from _number(name, "bytes moved", moved(a), moved(b), "info")
    yield from _number(name, "operations", a.get("flops"), b.get("flops"), "info")
    configurations = [(k.get("compiled") or {}).get("configurations") or [] for k in (a, b)]
    if not all(configurations):
        return
    used = [_usage(found) for found in configurations]
    for field in used[0]:
        # which configuration wins is known on the device alone: the best of each is what is left to it
        severity = "warning" if field == "spill bytes" and not used[0][field] else "info"
        yield from _number(name, field, used[0][field], used[1][field], severity)


def _usage(configurations: Sequence[Row]) -> dict[str, int]:
    usages = [(c["usage"], c) for c in configurations]
    return {
        "registers": min(int(u["registers"]) for u, _ in usages),
        "spill bytes": min(int(u["stack"]) if u["spill_stores"] else 0 for u, _ in usages),
        "shared bytes": min(int(c.get("shared") or 0) for _, c in usages),
        "configurations": len(usages),
    }


def _number(name: str, field: str, a: Any, b: Any, severity: str) -> Iterator[Change]:
    if a is None or b is None or a == b or abs(b - a) <= _TOLERANCE * max(abs(a), abs(b)):
        return
    effect: Effect = "worse" if b > a else "better"
    if field in ("configurations", "library calls", "operations"):
        effect = "other"
    yield Change(
        section="kernels",
        what=name,
        field=field,
        before=a,
        after=b,
        effect=effect,
        severity=severity if effect == "worse" else "info",
    )


def _presence(what: str, before: bool, after: bool, severity: str) -> Change:
    return Change(
        section="kernels",
        what=what,
        before="there" if before else None,
        after="there" if after else None,
        effect="worse" if after and severity != "info" else "other",
        severity=severity if after else "info",
    )
