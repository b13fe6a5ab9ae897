"""How far a prediction for a GPU agrees with that GPU: two reports of `cftdiag kernels`, two logs of
recompiles, one row for each thing compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cftdiag.kernels import kernels
from cftdiag.kernels.regime_changes import body, calls
from tests.gpu.program import LENGTHS, MODEL, ROWS
from tests.truth.compare import Log, differences, parse

ROOT = Path(__file__).resolve().parents[2]
#: One length on each side of the guards of 512 and 1024 tokens is enough: what changes between them is
#: compared by the logs.
SHAPES: Mapping[str, Any] = {"lengths": (520, 777), "batch_size": ROWS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was compared."""

    what: str
    alike: int
    of: int
    differ: tuple[str, ...] = ()
    """What differs, one line each."""
    binding: bool = True
    """False for what the prediction leaves undetermined: a difference is told and is no failure."""

    @property
    def agrees(self) -> bool:
        return self.alike == self.of and not self.differ


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """The offline side must not see the device: it would answer in the table's place."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES") if before is None else os.environ.update(
            CUDA_VISIBLE_DEVICES=before
        )


def reports(target: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(predicted for ``target``, read from the device here)."""
    with hidden():
        predicted = kernels(MODEL, target=target, with_source=True, **SHAPES)
    return predicted, kernels(MODEL, target="cuda", with_source=True, **SHAPES)


def of_reports(predicted: Mapping[str, Any], real: Mapping[str, Any]) -> list[Row]:
    """Graphs, kernels, their text, library calls, configurations, what the compiled configurations need, and
    winners.
    """
    left, right = _graphs(predicted), _graphs(real)
    names, launches, texts, externs, settings, needs, winners = (_Pairs() for _ in range(7))
    for (title, a), (_, b) in zip(left, right, strict=False):
        names.add(title, [k["name"] for k in a["kernels"]], [k["name"] for k in b["kernels"]])
        launches.add(title, calls(a["code"]), calls(b["code"]))
        externs.add(title, [e["op"] for e in a["externs"]], [e["op"] for e in b["externs"]])
        for x, y in zip(a["kernels"], b["kernels"], strict=False):
            where = f"{title} {y['name']}"
            texts.add(where, body(x["source"]), body(y["source"]))
            mine, theirs = (k["compiled"]["configurations"] for k in (x, y))
            settings.add(where, [c["settings"] for c in mine], [c["settings"] for c in theirs])
            for c, d in zip(mine, theirs, strict=False):
                needs.add(
                    f"{where} {d['settings']}",
                    {**c["usage"], "shared": c["shared"]},
                    {**d["usage"], "shared": d["shared"]},
                )
            winners.add(where, 1, sum(bool(c.get("winner")) for c in theirs))
    return [
        _Pairs((title, title, other) for (title, _), (other, _) in zip(left, right, strict=False)).row(
            "graphs", len(left), len(right)
        ),
        names.row("kernels of a graph, in order"),
        texts.row("text of a kernel"),
        externs.row("library calls of a graph, in order"),
        launches.row("output code of a graph: buffers, launches and calls in order"),
        settings.row("configurations of a kernel"),
        needs.row("registers, spills, access widths, shared memory of a configuration"),
        winners.row("autotuning picked one of the predicted configurations", binding=False),
    ]


def logs(target: str) -> tuple[Log, Log]:
    """(predicted, real) log of the recompiles and guards of `program`."""
    return _log(target), _log("real")


def of_logs(predicted: Log, real: Log) -> list[Row]:
    """Compiles, the text of the recompiles of each step, guards on sizes, and all other guards."""
    compiles = _Pairs((c, c in predicted.guards, True) for c in real.guards)
    texts = _Pairs(
        (step, list(predicted.recompiles.get(step, ())), list(said)) for step, said in real.recompiles.items()
    )
    found = [line for line in differences(real, predicted) if line.startswith("guards of")]
    of_sizes = tuple(line for line in found if _on_sizes(line))
    rest = tuple(line for line in found if not _on_sizes(line))
    total = sum(len(lines) for lines in real.guards.values())
    sizes = sum(_on_sizes(line) for lines in real.guards.values() for line in lines)
    return [
        compiles.row("compiles", len(predicted.guards), len(real.guards)),
        texts.row("recompiles of a step"),
        Row(what="guards on sizes", alike=max(sizes - len(of_sizes), 0), of=sizes, differ=of_sizes),
        Row(
            what="all other guards",
            alike=max(total - sizes - len(rest), 0),
            of=total - sizes,
            differ=rest,
            binding=False,
        ),
    ]


def _on_sizes(line: str) -> bool:
    return "size()" in line or "% " in line


def _graphs(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (f"{block['kind']} {graph['direction']} {','.join(map(str, graph['sizes'].values()))}", graph)
        for block in report["blocks"]
        for graph in block["graphs"]
    ]


class _Pairs(list[tuple[str, Any, Any]]):
    """(where, predicted, real) of everything that one row compares."""

    def add(self, where: str, predicted: Any, real: Any) -> None:
        self.append((where, predicted, real))

    def row(
        self, what: str, predicted: int | None = None, real: int | None = None, *, binding: bool = True
    ) -> Row:
        """The row; ``predicted`` and ``real`` are how many each side has, where pairs alone do not show it."""
        differ = [f"{where}: {_differ(a, b)}" for where, a, b in self if a != b]
        if predicted != real:
            differ.append(f"{predicted} predicted, {real} real")
        return Row(
            what=what,
            alike=sum(a == b for _, a, b in self),
            of=len(self) if real is None else real,
            differ=tuple(differ),
            binding=binding,
        )


def _differ(a: Any, b: Any) -> str:
    """Both sides, or of texts the first line that differs."""
    if isinstance(a, str) and isinstance(b, str):
        a, b = next(
            ((x, y) for x, y in itertools.zip_longest(a.splitlines(), b.splitlines()) if x != y), (a, b)
        )
    return f"predicted {_short(a)}, real {_short(b)}"


def _short(value: Any, most: int = 120) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[:most] + "..."


def _log(mode: str) -> Log:
    environment = dict(os.environ, TORCH_LOGS="recompiles,guards")
    if mode != "real":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(
        prefix="cftdiag-gpu-"
    ) as scratch:  # a graph from an earlier run's cache would repeat its guards
        environment["TORCHINDUCTOR_CACHE_DIR"] = scratch
        command = [sys.executable, "-m", "tests.gpu.program", mode]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"the {mode} run ended with {done.returncode}:\n{done.stderr[-3000:]}")
    # a device's name stands in every tensor guard, and the blocks were traced on the CPU
    return parse(done.stderr.replace("device=0", "device=None").replace("cuda:0", "cpu"))


def described() -> str:
    """What is compared, for the head of the table."""
    return f"{MODEL}, batch {ROWS}; kernels at {', '.join(map(str, SHAPES['lengths']))}, recompiles at {', '.join(map(str, LENGTHS))} tokens"
