"""The monitor's events against torch's own structured trace of the same run, as tlparse reads it: the same
compiles, breaks, recompiles.
"""

from __future__ import annotations

import collections
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cftdiag.events import Event
from cftdiag.monitor import load_run, report

Run = Callable[..., subprocess.CompletedProcess[str]]

HEAD = """
import sys
sys.path.insert(0, "tests/integration")
import torch
from torch import nn
import cftdiag
import monitor_programs as p
run = lambda model, optimizer, lengths: p.train(model, optimizer, lengths)
"""

PROGRAMS = {
    "lengths": """
        model, optimizer = p.build("aot_eager")
        with cftdiag.Monitor(model, run_dir=sys.argv[1], quiet=True):
            run(model, optimizer, [3, 4, 3, 5])
        """,
    "break": """
        class Breaks(p.Block):
            def forward(self, x):
                y = self.fc(x)
                torch._dynamo.graph_break()
                return y.relu()
        model = p.Model()
        model.layers[1] = Breaks()
        for layer in model.layers:
            layer.compile(backend="aot_eager", dynamic=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with cftdiag.Monitor(model, run_dir=sys.argv[1], quiet=True):
            run(model, optimizer, [3, 4])
        """,
    "limit": """
        torch._dynamo.config.recompile_limit = 2
        model, optimizer = p.build()
        with cftdiag.Monitor(model, run_dir=sys.argv[1], quiet=True):
            run(model, optimizer, [3, 4, 5, 6])
        """,
    "item": """
        class Reads(p.Block):
            def forward(self, x):
                if x.sum().item() > 1e9:
                    return x
                return self.fc(x)
        model = p.Model()
        model.layers[0] = Reads()
        whole = torch.compile(model, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with cftdiag.Monitor(whole, run_dir=sys.argv[1], quiet=True):
            run(whole, optimizer, [3, 5, 7])
        """,
    "refused": """
        class Breaks(p.Block):
            def forward(self, x):
                print("no")
                return self.fc(x)
        model = p.Model()
        model.layers[2] = Breaks()
        for layer in model.layers:
            layer.compile(backend="eager", fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with cftdiag.Monitor(model, run_dir=sys.argv[1], quiet=True):
                run(model, optimizer, [3])
        except torch._dynamo.exc.Unsupported:
            pass
        """,
}


def tlparse(trace: Path, out: Path) -> dict[str, collections.Counter[str]]:
    """Compile id without attempt -> number of artifacts by name, from tlparse's own index."""
    (log,) = trace.glob("*.log")
    exe = shutil.which("tlparse") or str(Path(sys.executable).with_name("tlparse"))
    subprocess.run([exe, str(log), "-o", str(out), "--no-browser"], check=True, capture_output=True)
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for cid, entry in json.loads((out / "compile_directory.json").read_text()).items():
        match = re.fullmatch(r"\[(\d+/\d+)(?:_\d+)?\]", cid)
        if match:
            for artifact in entry["artifacts"]:
                found[match.group(1)][re.sub(r"_\d+\.\w+$", "", artifact["name"])] += 1
    return found


def break_lines(out: Path) -> set[tuple[str, int]]:
    """(compile id, innermost user line) of each break that tlparse shows."""
    found = set()
    for file in out.glob("-_*/dynamo_graph_break_reason_*.txt"):
        _, frame, number, _ = file.parent.name.split("_")
        user = file.read_text().partition("User code traceback:")[2].partition("\nTraceback")[0]
        found.add((f"{frame}/{number}", int(re.findall(r'File ".+", line (\d+), in', user)[-1])))
    return found


def count(events: list[Event], kind: str, **detail: object) -> collections.Counter[str]:
    chosen = [
        e for e in events if e.kind == kind and all(getattr(e.detail, k) == v for k, v in detail.items())
    ]
    return collections.Counter(e.compile_id or "" for e in chosen)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.everything("8 s; the programs that break stay")] if name == "lengths" else [],
        )
        for name in PROGRAMS
    ],
)
def test_events_agree_with_tlparse(run_python: Run, tmp_path: Path, name: str) -> None:
    import textwrap

    trace = tmp_path / "trace"
    run_python(HEAD + textwrap.dedent(PROGRAMS[name]), str(tmp_path / "run"), env={"TORCH_TRACE": str(trace)})
    truth = tlparse(trace, tmp_path / "html")
    lines = break_lines(tmp_path / "html")
    for source in ("run", "trace"):
        events = list(load_run(tmp_path / source).events)

        def said(artifact: str) -> collections.Counter[str]:
            return collections.Counter({cid: n for cid, names in truth.items() if (n := names[artifact])})

        compiles = collections.Counter(
            e.compile_id or "" for e in events if e.kind == "compile" and e.region != "backward"
        )
        assert compiles + count(events, "limit_hit") == said("compilation_metrics"), source
        assert collections.Counter(e.compile_id or "" for e in events if e.region == "backward") == said(
            "bwd_compilation_metrics"
        ), source
        assert count(events, "recompile") + count(events, "limit_hit") == said("recompile_reasons"), source
        breaks = {
            (e.compile_id or "", e.stack[-1].line)
            for e in events
            if e.kind == "graph_break" and not e.broke.fullgraph
        }
        if name == "item":
            # torch reports a break again for each frame that it passes on its way out; it is one break, told
            # once a compile of its own.
            assert breaks < lines and {line for _, line in breaks} == {line for _, line in lines}, source
        else:
            assert breaks == lines, source
            assert count(events, "graph_break", fullgraph=False) == said("dynamo_graph_break_reason"), source
        graphs = collections.Counter(
            {e.compile_id or "": n for e in events if e.kind == "compile" and (n := e.compiled.graphs)}
        )
        assert graphs == said("dynamo_output_graph"), source
    # What a live process adds is names and steps, never another number of events.
    live, recorded = report(tmp_path / "run"), report(tmp_path / "trace")
    for kind in ("compiles", "recompiles", "limit_hits"):
        assert [r["compile_id"] for r in live[kind]] == [r["compile_id"] for r in recorded[kind]], kind
    assert [(r["compile_id"], r["guard"]) for r in live["recompiles"]] == [
        (r["compile_id"], r["guard"]) for r in recorded["recompiles"]
    ]
    assert recorded["source"]["kind"] == "trace"
    assert any(live[kind] for kind in ("recompiles", "graph_breaks", "limit_hits"))
