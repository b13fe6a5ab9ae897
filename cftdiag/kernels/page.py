"""The report of `cftdiag kernels` as one self-contained HTML page: each kernel with its figures, lines and highlighted text.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag import __version__
from cftdiag.escape import escaped
from cftdiag.kernels import rows
from cftdiag.kernels.titles import title
from cftdiag.report import page_parts


def render(data: Mapping[str, Any]) -> str:
    """The page of a report of schema ``cftdiag.kernels/1``; every text of it is escaped."""
    device, facts = rows.headline(data)
    return (
        page_parts.environment()
        .get_template("kernels.html.j2")
        .render(
            version=__version__,
            model=data["model"],
            device=device,
            facts=facts,
            header=rows.HEADER,
            call_header=rows.CALL_HEADER,
            blocks=[_block(block, f"block-{i}") for i, block in enumerate(data["blocks"], 1)],
            findings=[_finding(finding) for finding in data["findings"]],
            frames=data["bytecode"],
            assumptions=data["assumptions"],
        )
    )


def _block(block: Mapping[str, Any], anchor: str) -> dict[str, Any]:
    return {
        "anchor": anchor,
        "title": rows.block_title(block),
        "graphs": [_graph(graph, f"{anchor}-{i}") for i, graph in enumerate(block["graphs"], 1)],
        "changes": [rows.change_words(change) for change in block["changes"]],
    }


def _graph(graph: Mapping[str, Any], anchor: str) -> dict[str, Any]:
    direction = graph["direction"]
    return {
        "title": f"{direction} {graph['compile_id']}",
        "sizes": rows.sizes(graph),
        "kernels": [
            _kernel(kernel, times, direction, f"{anchor}-{i}")
            for i, (kernel, times) in enumerate(rows.launched(graph["kernels"]), 1)
        ],
        "calls": [rows.library_call(extern) for extern in graph["externs"]],
    }


def _kernel(kernel: Mapping[str, Any], times: int, direction: str, anchor: str) -> dict[str, Any]:
    language = "cpp" if kernel["category"] == "cpp" else "python"
    return {
        "anchor": anchor,
        "cells": rows.row(kernel, times, direction),
        "title": title(kernel, direction),
        "name": kernel["name"],
        "aten": ", ".join(kernel["aten"]),
        "lines": rows.places(kernel["lines"], 6),
        "source": page_parts.highlighted(kernel["source"], language) if kernel["source"] else "",
    }


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    where = finding["where"]
    return {
        "severity": escaped(finding["severity"]),
        "cause": finding["cause"],
        "where": f"{Path(where['file']).name}:{where['line']}" if where["file"] else "",
        "evidence": finding["evidence"],
        "fix": [remedy["summary"] for remedy in finding["remedies"]],
    }
