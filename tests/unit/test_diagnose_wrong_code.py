"""Known wrong code: matched on the graph and its generated text, told as an error with its workaround."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from cftdiag.diagnose import diagnose
from cftdiag.diagnose.engine.context import Context
from cftdiag.diagnose.engine.probes import Probes
from cftdiag.diagnose.wrong_code import ADVISORIES, WrongCode
from cftdiag.findings import Where
from cftdiag.passes.messages import Result, decode, encode

FOUND = WrongCode(
    issue="pytorch#193061",
    compile_id="0/0",
    backward=True,
    buffers=("buf1", "buf4"),
    line=Where(file="model.py", line=7, function="forward", code="x * scale"),
    block="layers.0",
)


def test_a_match_is_an_error_with_its_workaround() -> None:
    [finding] = diagnose([], Context(probes=Probes(wrong_code=(FOUND, FOUND))))
    assert (finding.kind, finding.cause, finding.severity) == ("numerics", "known_wrong_code", "error")
    assert (finding.where.line, finding.blocks, finding.count) == (7, ("layers.0",), 2)
    assert "before 2.15 (pytorch#193061)" in finding.explanation
    assert [r.applicability for r in finding.remedies] == ["safe", "by_hand"]
    assert finding.remedies[0].change == ADVISORIES[FOUND.issue].change
    assert any("buf1, buf4 in the generated backward" in line for line in finding.evidence)


def test_a_match_crosses_from_a_pass_to_the_check() -> None:
    result = Result(graphs={}, fullgraph={}, calls={}, wrong_code=(FOUND,))
    assert decode(encode(result)) == result


def test_only_a_view_that_the_code_binds_anew_is_lost() -> None:
    from cftdiag.target.wrong_code import _rebound_views
    from cftdiag.torch_private.inductor import NonOwningLayout

    def buffer(layout: Any) -> SimpleNamespace:
        return SimpleNamespace(node=SimpleNamespace(layout=layout))

    view = object.__new__(NonOwningLayout)
    graph = SimpleNamespace(
        scheduler=SimpleNamespace(
            name_to_buf={"buf1": buffer(view), "buf10": buffer(view), "buf2": buffer(None)}
        )
    )
    lost = "    buf1 = workspace_0[0 * (8) : 8].view(2, 4).sum(dim=0)\n    buf2 = workspace_0[8 : 16].sum(dim=0)\n"
    assert _rebound_views(graph, lost) == ("buf1",)
    written = "    buf1 = reinterpret_tensor(buf9, (4,), (1,), 0)  # alias\n    buf1.copy_(workspace_0[0 : 8].sum(dim=0))\n"
    assert _rebound_views(graph, written) == ()


def test_every_block_that_runs_the_code_is_named() -> None:
    ran = {"layers.0": ["0/0"], "layers.1": ["0/0", "0/1"], "layers.2": ["1/0"]}
    [finding] = diagnose([], Context(ran=ran, probes=Probes(wrong_code=(FOUND,))))
    assert finding.blocks == ("layers.0", "layers.1")


def test_an_open_bug_names_no_version_to_take_instead() -> None:
    found = dataclasses.replace(FOUND, issue="pytorch#198333")
    [finding] = diagnose([], Context(probes=Probes(wrong_code=(found,))))
    assert "from 2.13 on (pytorch#198333)" in finding.explanation
    assert [r.change for r in finding.remedies] == [{"torch._inductor.config.fallback_random": True}]


KERNEL = """
@triton.jit
def triton_poi_fused_0(in_ptr0, out_ptr0, load_seed_offset, ks0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    x0 = (xindex % 64)
    x1 = xindex // 64
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + load_seed_offset)
    tmp1 = {offset}
    tmp2 = triton_helpers.rand4x(tmp0, (tmp1).to(tl.uint32), XBLOCK)
    tl.store(out_ptr0 + (x2), tmp2, None)
"""


@pytest.mark.parametrize(
    "offset, wrong",
    [
        ("x2", False),
        ("x0 + 64*x1", False),
        ("128 + x2", False),
        ("x1 + 4096*x0", True),
        ("x1 + ks0*x0", True),
        ("(x1 + 64*x0).to(tl.int32)", True),
        ("2*x2", True),
        ("tl.load(in_ptr1 + (x2))", False),  # what cannot be computed is not accused
    ],
)
def test_random_numbers_in_fours_need_the_order_of_the_kernel(offset: str, wrong: bool) -> None:
    from cftdiag.target.wrong_code import random_out_of_order

    text = "import torch\n" + KERNEL.format(offset=offset) + "\ndef call(args):\n    pass\n"
    assert random_out_of_order(text) == (("triton_poi_fused_0",) if wrong else ())


def test_a_part_written_into_an_expanded_tensor() -> None:
    import torch

    from cftdiag.target.wrong_code import scatters_on_expanded

    graph = torch.fx.Graph()
    into = graph.placeholder("x")
    for value in (torch.ones(1).expand(4), torch.ones(4), torch.ones(1, 3), torch.ones(1).expand(1)):
        graph.call_function(torch.ops.aten.slice_scatter.default, (into, into)).meta["val"] = value
    graph.call_function(torch.ops.aten.add.Tensor, (into, into)).meta["val"] = torch.ones(1).expand(4)
    assert [node.name for node in scatters_on_expanded(graph)] == ["slice_scatter_default"]
