"""Counts that a report gives, against what the same program does in a process without our code.

The programs lie in ``tests/cases/truth``; their true counts were taken from torch's own logs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cftdiag.check import CheckReport, run_check
from cftdiag.options import CheckOptions

PROGRAMS = Path(__file__).parents[1] / "cases" / "truth"


def check(name: str, **options: object) -> CheckReport:
    return run_check(CheckOptions(model=f"{PROGRAMS / name}.py:build", verify=False, **options))


def test_our_own_functions_are_never_compiled() -> None:
    report = check("tolist_min", fast_forward="always", dynamic="true")
    assert len(report.compiles) == 2
    assert [(f.kind, f.cause) for f in report.findings] == [("graph_break", "tensor.tolist")]
    assert {b.graphs for b in report.blocks} == {2}


def test_every_stack_that_the_step_calls_is_reported() -> None:
    report = check("two_stacks", dynamic="true")
    assert [b.fqn for b in report.blocks] == [f"vision.{i}" for i in range(4)] + [
        f"language.{i}" for i in range(3)
    ]
    assert report.verdict == "not_viable"
    assert {b.fqn.partition(".")[0] for b in report.blocks if b.graph_breaks} == {"language"}


@pytest.mark.everything("20 s; unit/test_check_strategy.py holds how many layers a proof builds")
def test_a_remedy_is_proved_on_fewer_layers_than_the_check_has() -> None:
    options = CheckOptions(model="SmolLM2-135M", attn="flash_attention_2", layers="2", lengths=(24, 40))
    [finding] = [f for f in run_check(options).findings if f.kind == "graph_break"]
    assert {"attn": "sdpa"} in [r.change for r in finding.remedies if r.verified]
    assert not [r for r in finding.remedies if r.verified is False]


def test_a_frame_that_gave_the_backend_nothing_is_no_compile() -> None:
    report = check("break_in_hook", fast_forward="never")
    assert [(c["step"], c["block"]) for c in report.compiles] == [(1, "blocks.0")] * 2 + [(2, "blocks.0")] * 2
    assert {f.where.line for f in report.findings if f.kind == "graph_break"} == {12}


def test_a_graph_that_only_returns_a_size_is_a_compile() -> None:
    report = check("size_behind_break", fast_forward="never")
    assert [c["step"] for c in report.compiles] == [1, 2, 2]


HOOKED = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x)


class Model(nn.Module):
    def __init__(self, hooked):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.calls = [0] * 3
        for i in hooked:
            self.layers[i].linear.register_forward_hook(self.counting(i))

    def counting(self, i):
        def hook(module, args, output):
            module.calls = i

        return hook

    def forward(self, x):
        x = x.requires_grad_()
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(HOOKED), [{"x": torch.ones(2, 8)} for _ in range(2)]
"""


@pytest.mark.parametrize("hooked", [(2,), (0,), (0, 1, 2), (0, 2)])
def test_hooks_that_another_blocks_code_ignores_are_told(
    fresh_dynamo: None, tmp_path: Path, hooked: tuple[int, ...]
) -> None:
    source = HOOKED.replace("HOOKED)", f"{hooked})")
    (tmp_path / "program.py").write_text(source)
    names: dict[str, Any] = {}
    exec(source, names)
    model, batches = names["build"]()
    for block in model.layers:
        block.compile(backend="eager", dynamic=False)
    for batch in batches:
        model(**batch).sum().backward()
    ignored = [i for i in hooked if not hasattr(model.layers[i].linear, "calls")]
    report = run_check(
        CheckOptions(model=f"{tmp_path / 'program.py'}:build", verify=False, depth="trace", dynamic="false")
    )
    found = [f.blocks for f in report.findings if f.cause == "late_hook_ignored"]
    assert found == ([tuple(f"layers.{i}" for i in ignored)] if ignored else [])
