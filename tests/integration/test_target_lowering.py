"""A small block lowered for the CPU and for GPUs that are not there. No GPU, and for the CPU no compiler,
takes part.
"""

import subprocess

import pytest
import torch

from cftdiag import target
from cftdiag.fastforward import STATS, SkipMode, mark_weights
from cftdiag.target import cuda, resources

ARCH = {"a100": "sm_80", "h200": "sm_90", "b200": "sm_100"}


class Block(torch.nn.Module):
    def __init__(self, n=64):
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.RMSNorm(n),
            torch.nn.Linear(n, 4 * n),
            torch.nn.Linear(4 * n, n),
        )

    def forward(self, x):
        self.saw_cuda = torch.cuda.is_available()
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def train(block, lengths, n=64, rows=2):
    """Compiles after each length."""
    counts = []
    with SkipMode():
        for length in lengths:
            x = torch.randn(rows, length, n, requires_grad=True)
            block(x).sum().backward()
            assert x.grad.shape == x.shape and x.grad.device.type == "cpu"
            assert all(p.grad.shape == p.shape for p in block.parameters())
            counts.append(STATS["fwd"])
    return counts


def compiled_block(name, **options):
    STATS.clear()
    with SkipMode():
        block = mark_weights(Block())
        block.compile(backend=target.backend(name, **options), dynamic=True, fullgraph=True)
    return block


_DEVICE = pytest.mark.everything("6 s each; the H200 stays, the others differ in numbers of a table")


@pytest.mark.parametrize(
    "name", ["cpu", "h200", *(pytest.param(name, marks=_DEVICE) for name in ("a100", "b200"))]
)
def test_lowers_runs_and_leaves_the_process_as_it_was(name, fresh_dynamo, monkeypatch):
    graphs = []
    block = compiled_block(name, on_graph=graphs.append)
    if name == "cpu":  # a C++ compiler, if only to ask for its version; Triton asks its own ptxas
        for start in ("Popen", "check_call", "check_output", "run"):
            monkeypatch.setattr(subprocess, start, lambda *a, **k: pytest.fail("a compiler was started"))
    before = _state()
    counts = train(block, (40, 72, 3000))
    assert _state() == before and not block.saw_cuda
    # Inductor's C++ sums more than 4096 elements with another helper; nothing like it for a GPU
    assert counts == ([1, 1, 2] if name == "cpu" else [1, 1, 1])
    assert [g.backward for g in graphs] == [False, True] * counts[-1]
    forward = graphs[0]
    assert sorted(forward.sizes.values()) == [2, 40]
    assert {w.function for k in forward.kernels for w in k.lines} == {"forward"}
    assert any("gelu" in op for k in forward.kernels for op in k.aten)
    assert sum(e.op in ("aten.mm", "aten.addmm") for e in forward.externs) == 2
    assert {e.flops for e in forward.externs} == {2 * 80 * 64 * 256}
    if name == "cpu":
        assert "cpp_pybinding" in forward.code
        return
    assert "async_compile.triton" in forward.code
    needs = resources.compile_all(name, forward.kernels)
    configurations = [c for n in needs.values() for c in n.configurations]
    assert {n.arch for n in needs.values()} == {ARCH[name]}
    assert len(needs) == 3 and all(c.usage.registers > 0 and c.usage.widest >= 32 for c in configurations)
    assert _state() == before


def _state():
    """What a program can see of the devices."""
    from torch._dynamo import device_interface
    from torch._functorch._aot_autograd import utils
    from torch._inductor.graph import GraphLowering

    device_interface.get_interface_for_device("cpu")  # torch fills its table on the first question
    return (
        torch.cuda.is_available(), torch.version.cuda, torch.accelerator.current_accelerator(), torch.cuda.default_generators,
        GraphLowering._compile_to_module, torch.cuda.get_device_properties, dict(device_interface.device_interfaces),
        utils.get_default_generator, torch._C._dispatch_has_kernel_for_dispatch_key("aten::scaled_dot_product_attention", "AutogradCUDA"),
    )  # fmt: skip


class WithConstants(torch.nn.Linear):
    """Numbers and a list that the forward makes tensors of, on the device of its input."""

    def forward(self, x):
        scale, shift = torch.tensor(0.5, device=x.device), torch.tensor([1.0, 2.0] * 8, device=x.device)
        return super().forward(x) * scale + shift


def test_constants_of_a_forward_are_no_reason_to_refuse_it(fresh_dynamo):
    graphs = []
    STATS.clear()
    with SkipMode():
        block = mark_weights(WithConstants(16, 16))
        block.compile(backend=target.backend("h200", on_graph=graphs.append), dynamic=True, fullgraph=True)
    assert train(block, (40, 72), n=16) == [1, 1]
    assert [g.backward for g in graphs] == [False, True]
    assert all(kernel.source for kernel in graphs[0].kernels)


def test_fusion_threshold_of_the_gpu_recompiles_and_a_safe_setting_removes_it(fresh_dynamo):
    """Inductor fuses reductions of two orders only from 5 * 2**20 elements on: 2 rows * 41000 * 64 is above."""
    assert train(compiled_block("h200"), (40, 41000)) == [1, 2]
    torch._dynamo.reset()
    assert train(
        compiled_block("h200", inductor_config={"triton.mix_order_reduction": False}), (40, 41000)
    ) == [1, 1]


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = (
            torch.nn.Linear(64, 192, dtype=torch.bfloat16),
            torch.nn.Linear(64, 64, dtype=torch.bfloat16),
        )

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("cudnn", "kernel", "compiles"), [("", "flash", 2), ("91501", "cudnn", 1)])
def test_attention_brings_the_alignment_guard_of_its_kernel(
    cudnn, kernel, compiles, fresh_dynamo, monkeypatch
):
    from cftdiag.target import sdpa

    monkeypatch.setenv(sdpa.CUDNN_VARIABLE, cudnn)
    STATS.clear()
    sdpa.CHOICES.clear()
    graphs = []
    with SkipMode():
        block = mark_weights(Attention())
        block.compile(backend=target.backend("h200", on_graph=graphs.append), dynamic=True, fullgraph=True)
        for length in (520, 777, 640):
            block(
                torch.randn(2, length, 64, dtype=torch.bfloat16, requires_grad=True)
            ).float().sum().backward()
    assert [k for k, _ in sdpa.CHOICES] == [kernel]
    (attention,) = (e for e in graphs[0].externs if f"_scaled_dot_product_{kernel}_attention" in e.op)
    assert attention.flops == 2 * 2 * (
        2 * 4 * 520 * 520 * 16
    )  # two products for each of 2 rows and 4 heads, nothing counted off for the mask
    assert STATS["fwd"] == compiles  # (S % 8) == 0 of the flash kernel's log-sum-exp
    assert any(f"torch's {kernel} kernel" in line for line in target.assumptions("h200"))


def test_recomputed_dropout_finds_the_absent_generator(fresh_dynamo):
    from torch.utils.checkpoint import checkpoint

    class Dropped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(64, 64)

        def forward(self, x):
            return checkpoint(
                lambda t: torch.nn.functional.dropout(self.inner(t), 0.5), x, use_reentrant=False
            )

    with SkipMode():
        block = mark_weights(Dropped())
        block.compile(backend=target.backend("h200"), dynamic=True, fullgraph=True)
        for length in (40, 72):
            x = torch.randn(2, length, 64, requires_grad=True)
            block(x).sum().backward()
            assert x.grad.shape == x.shape
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_every_patch_point_is_probed(name):
    rows = target.probe(name)
    assert all(ok for _, ok, _ in rows), rows
    assert "torch._inductor.graph:GraphLowering._compile_to_module" in [point for point, _, _ in rows]


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_a_missing_patch_point_is_named_with_the_depth_that_is_left(name, monkeypatch):
    from torch._inductor.graph import GraphLowering

    monkeypatch.delattr(GraphLowering, "_compile_to_module")
    with pytest.raises(
        target.TargetUnavailable,
        match=r"_compile_to_module does not exist in this torch.*depth joint is still available",
    ) as info:
        target.backend(name)
    assert info.value.left == "joint"


def test_a_changed_signature_is_a_miss(monkeypatch):
    from torch._inductor.graph import GraphLowering

    monkeypatch.setattr(GraphLowering, "_compile_to_module", lambda lowering, wrapper: None)
    with pytest.raises(
        target.TargetUnavailable, match=r"takes \('lowering', 'wrapper'\), expected \('self',\)"
    ):
        target.backend("cpu")


def test_without_triton_the_gpu_targets_say_so(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "triton", None)
    assert "pip install 'cftdiag[target]'" in cuda.why_not()


def test_a_real_compile_is_read_the_same_way(fresh_dynamo):
    """The reading of real devices, on the one that every machine has."""
    from torch._inductor.graph import GraphLowering

    from cftdiag.target.collect import Collector
    from cftdiag.target.real import Reader

    graphs, reader, before = [], Reader(), GraphLowering._compile_to_module
    x = torch.randn(8, 8)
    with reader.reading(Collector("cuda", graphs.append)):
        got = torch.compile(lambda t: t.sin() + 1)(x)
    torch.testing.assert_close(got, x.sin() + 1)
    (graph,) = graphs
    assert [k.aten for k in graph.kernels] == [("aten.sin", "aten.add")] and graph.kernels[
        0
    ].bytes == 2 * 8 * 8 * 4
    assert "cpp_pybinding" in graph.code and len(reader.modules) == 1 and reader.winners(0) == {}
    assert GraphLowering._compile_to_module is before
