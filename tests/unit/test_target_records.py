"""Regimes, findings from the code and the terminal table on made-up kernels: pure functions."""

import io
from types import SimpleNamespace

import pytest

from cftdiag.findings import Where
from cftdiag.kernels import render
from cftdiag.kernels.code_findings import code_findings
from cftdiag.kernels.regime_changes import body, changes
from cftdiag.target.records import Extern, Kernel, Lowered, Split
from cftdiag.target.sass import Usage

LINE = Where(file="/models/qwen.py", line=64, function="forward", code="return self.weight * x")


def kernel(name="triton_poi_0", *, text="x + 1", aten=("aten.add",), size=1 << 22):
    source = f"import triton\n@triton.jit\ndef {name}(in_ptr0, xnumel):\n    {text}\n"
    return Kernel(
        name=name, category="pointwise", source=source, aten=aten, lines=(LINE,), numels={"xnumel": ("s0", size)},
        reads={"buf0": size}, writes={"buf1": size}, flops=size,
    )  # fmt: skip


def graph(*kernels, backward=False, compile_id="0/0", sizes=None, splits=(), items=()):
    return Lowered(
        target="h200", backward=backward, compile_id=compile_id, code="", kernels=kernels,
        externs=(Extern(op="aten.mm", call="extern_kernels.mm", flops=10, bytes=10, lines=(LINE,)),),
        splits=splits, sizes=sizes or {"s0": 512}, items=items, peak_bytes=None,
    )  # fmt: skip


def compiled(*, registers=32, stack=0, spills=0, width=128, fp64=0, unaligned=(), fp64_arguments=()):
    usage = Usage(
        registers=registers,
        stack=stack,
        static_shared=0,
        spill_stores=spills,
        spill_loads=spills,
        loads={width: 1},
        stores={width: 1},
        fp64=fp64,
    )
    return SimpleNamespace(
        configurations=[SimpleNamespace(usage=usage)], unaligned=unaligned, fp64_arguments=fp64_arguments
    )


def causes(needs, **more):
    k = kernel(**more)
    return [f.cause for f in code_findings([(("layers.0",), graph(k))], {k.source: needs})]


def test_a_good_kernel_has_no_finding():
    assert causes(compiled()) == []


@pytest.mark.parametrize(
    ("needs", "cause"),
    [
        (compiled(stack=64, spills=3), "kernel_spills"),
        (compiled(width=16), "kernel_scalar_access"),
        (compiled(fp64=1), "kernel_fp64"),
    ],
)
def test_each_fault_is_found_alone(needs, cause):
    assert causes(needs) == [cause]


def test_narrow_accesses_of_a_tiny_kernel_do_not_matter():
    assert causes(compiled(width=16), size=1000) == []


def test_findings_are_info_name_the_line_and_merge():
    a, b = kernel("triton_poi_0"), kernel("triton_poi_1", text="x * 2")
    needs = compiled(fp64=2, fp64_arguments=("in_ptr1",))
    (found,) = code_findings(
        [(("layers.0",), graph(a)), (("layers.1",), graph(b, backward=True))],
        {a.source: needs, b.source: needs},
    )
    assert (found.kind, found.severity, found.count, found.where) == ("perf", "info", 2, LINE)
    assert found.blocks == ("layers.0", "layers.1")
    assert "triton_poi_0 (forward)" in found.evidence[0] and "in_ptr1" in found.evidence[0]
    assert "triton_poi_1 (backward)" in found.evidence[1]


def test_split_reductions_and_items_of_a_graph():
    g = graph(splits=(Split(reduction="sum", parts="128", lines=(LINE,)),), items=(LINE,))
    assert [f.cause for f in code_findings([(("layers.0",), g)], {})] == ["reduction_split", "tensor.item"]


def test_bodies_are_compared_without_their_names():
    assert body(kernel("triton_poi_0").source) == body(kernel("triton_poi_9").source)
    assert body(kernel().source) != body(kernel(text="x + 2").source)


def test_changes_between_two_regimes():
    before = graph(
        kernel("a"),
        kernel("b", text="x * 2", aten=("aten.mul",)),
        kernel("c", text="gone", aten=("aten.sub",)),
    )
    after = graph(
        kernel("z"), kernel("y", text="x * 3", aten=("aten.mul",)), compile_id="0/1", sizes={"s0": 1024}
    )
    found = changes(before, after)
    assert (found["same"], found["changed"], found["only_before"], found["only_after"]) == (
        1,
        [{"before": "b", "after": "y"}],
        ["c"],
        [],
    )
    assert found["to"] == {"compile_id": "0/1", "sizes": {"s0": 1024}}


def test_equal_kernels_are_counted_not_set_aside():
    assert changes(graph(kernel("a"), kernel("b")), graph(kernel("c")))["only_before"] == ["b"]


def test_the_table_says_what_a_kernel_moves_and_needs():
    usage = {"registers": 24, "stack": 0, "loads": {"128": 2}, "stores": {"32": 1}}
    wide = {**usage, "registers": 168}
    data = {
        "model": "Tiny", "device": {"name": "NVIDIA H200"}, "predicted": True, "shapes": [{"batch_size": 2, "length": 512}],
        "seconds": {"lowering": 3.0, "total": 4.0}, "findings": [], "bytecode": [], "assumptions": ["no GPU took part"],
        "blocks": [{
            "kind": "Block", "fqns": ["layers.0", "layers.1"], "changes": [],
            "graphs": [{
                "direction": "forward", "compile_id": "0/0", "sizes": {"s0": 512}, "peak_bytes": 2_000_000, "externs": [],
                "kernels": 2 * [{
                    "name": "triton_poi_fused_add_0", "category": "pointwise", "aten": ["aten.add"], "source": None,
                    "lines": [{"file": "/models/qwen.py", "line": 64, "function": "rms_norm"}],
                    "read_bytes": 3_000_000, "write_bytes": 1_000_000, "flops": 2_000_000,
                    "roofline": {"microseconds": 0.8, "limited_by": "memory", "intensity": 0.5},
                    "compiled": {"configurations": [{"usage": usage, "shared": 0}, {"usage": wide, "shared": 1024}]},
                }],
            }],
        }],
    }  # fmt: skip
    out = io.StringIO()
    render.show(data, file=out, width=120)
    text = out.getvalue()
    assert "2 x Block  layers.0 .. layers.1" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("rms_norm, qwen.py:64  "))
    assert "    rms_norm, qwen.py:64  triton_poi_fused_add_0  qwen.py:64\n" in text
    assert row.split() == [
        "rms_norm,",
        "qwen.py:64",
        "2",
        "4.00",
        "2.0",
        "0.50",
        "0.8",
        "memory",
        "24-168",
        "0",
        "0-1024",
        "128",
        "2",
    ]
    assert "forward 0/0  s0=512, 2 MB of buffers at the peak" in text
