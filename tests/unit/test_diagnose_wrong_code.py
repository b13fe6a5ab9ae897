"""Known wrong code: matched on the graph and its generated text, told as an error with its workaround."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
