"""A run's report in the shape of a check's, for the renderings that know only that shape (Markdown, HTML,
SARIF, JUnit).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_check(run: Mapping[str, Any]) -> dict[str, Any]:
    """The same findings, blocks and compiles as a dict like ``cftdiag.check/1``; depth is ``run``."""
    recompiled = {(r["rank"], r["compile_id"], r["step"]): r["cause"] for r in run["recompiles"]}
    forward = [
        c
        for c in run["compiles"]
        if c.get("region") != "backward" and c.get("status") in ("ok", None) and c.get("graphs") != 0
    ]
    compiles = [
        {
            "compile_id": c["compile_id"],
            "block": c["block"] or c["code"],
            "step": c["step"],
            "length": c["batch"][1] if c.get("batch") else None,
            "seconds": c["seconds"],
            "cause": recompiled.get((c["rank"], c["compile_id"], c["step"])),
            "tlparse": c.get("tlparse"),
            # the ids of several ranks are alike
            **({"rank": c["rank"]} if run["ranks"] > 1 else {}),
        }
        for c in forward
    ]
    alone = [
        f"step {d['step']}: ranks {', '.join(map(str, d['ranks']))} compiled alone for {d['seconds']:.2f} s, the others lost {d['waited']:.2f} s"
        for d in run["divergence"]
    ]
    return {
        "schema": "cftdiag.check/1",
        "verdict": run["verdict"],
        "subject": {
            "type": "run",
            "name": run["source"]["path"],
            "model_class": f"{_counted(run['ranks'], 'rank')}, {_counted(run['steps'], 'step')}",
            "world_size": run["world_size"],
        },
        "depth": "run",
        "target": None,
        "environment": run["environment"],
        "blocks": _blocks(run),
        "findings": run["findings"],
        "compiles": compiles,
        "forecast": None,
        "timing": {"wall_s": run["timing"]["wall_s"] or None, "passes": []},
        "undetermined": [*run["problems"], *alone],
        "check": None,
    }


def _blocks(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Blocks that compiled code of their own, over all ranks; those that share another's are not told apart
    in a run.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, counter in (
        ("compiles", "graphs"),
        ("graph_breaks", "graph_breaks"),
        ("recompiles", "recompiles"),
    ):
        for row in run[key]:
            if row["block"] is None or row.get("region") == "backward":
                continue
            empty = {
                "fqn": row["block"],
                "class": row["class"],
                "kind": row["class"],
                "graphs": 0,
                "graph_breaks": 0,
                "recompiles": 0,
                "fullgraph": None,
            }
            block = found.setdefault(row["block"], empty)
            block[counter] += int(row.get("graphs") or 0) if counter == "graphs" else 1
    for block in found.values():
        # In a run no graph break means that the block was captured whole.
        block["fullgraph"] = block["graph_breaks"] == 0 if block["graphs"] else None
    return list(found.values())


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
