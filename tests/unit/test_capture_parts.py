"""Parts of the capture that need no compile: blocks by name, tensors against a guard, limits."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from cftdiag.capture.assemble import Assembler
from cftdiag.capture.batch_shapes import batch_shape
from cftdiag.capture.blocks import Blocks
from cftdiag.capture.cached_guards import tensor_differences
from cftdiag.capture.capture_ends import Reported
from cftdiag.capture.describe import short_repr
from cftdiag.capture.recompile_reasons import Miss
from cftdiag.capture.record import Record
from cftdiag.capture.tap import Tap
from cftdiag.details import Argument
from cftdiag.events import Code, Event, Frame, Guard


def nested() -> torch.nn.Module:
    model = torch.nn.Module()
    layer = torch.nn.Module()
    layer.experts = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    model.layers = torch.nn.ModuleList([layer])
    return model


def test_a_module_belongs_to_the_innermost_block_that_was_named() -> None:
    model, blocks = nested(), Blocks()
    blocks.watch(model, ["layers.0", "layers.0.experts.0"])
    assert blocks.block("layers.0.experts.0") == "layers.0.experts.0"
    assert blocks.block("layers.0.experts") == "layers.0"


def test_a_module_belongs_to_the_innermost_compiled_one() -> None:
    model, blocks = nested(), Blocks()
    for name in ("layers.0", "layers.0.experts.0"):
        model.get_submodule(name).compile(backend="eager")
    blocks.watch(model)
    assert blocks.block("layers.0.experts.0") == "layers.0.experts.0"
    assert blocks.block("layers.0.experts") == "layers.0"


CHECK = (
    "check_tensor(L['x'], Tensor, DispatchKeySet(CPU, A), torch.float32, device=None, requires_grad=False, "
    "size=[2, 3, 4], stride=[12, 4, 1])"
)


def test_a_transposed_tensor_differs_once_though_all_its_strides_do() -> None:
    met = torch.empty_strided((2, 3, 4), (1, 2, 6))
    found = tensor_differences(CHECK, met)
    assert [(g.source, g.expected, g.actual, g.condition.kind) for g in found] == [
        ("L['x'].stride()[0]", "12", "1", "stride")
    ]


def test_strides_of_a_tensor_of_other_sizes_are_not_told() -> None:
    found = tensor_differences(CHECK, torch.empty(2, 5, 7))
    assert [(g.source, g.condition.index) for g in found] == [
        ("L['x'].size()[1]", 1),
        ("L['x'].size()[2]", 2),
    ]


def test_each_property_of_a_tensor_that_differs_is_told() -> None:
    met = torch.empty(2, 3, dtype=torch.bfloat16, requires_grad=True)
    assert [g.condition.kind for g in tensor_differences(CHECK, met)] == ["dtype", "requires_grad", "rank"]
    assert [g.condition.kind for g in tensor_differences(CHECK, None)] == ["tensor_type"]
    assert tensor_differences("len(x) == 1", None) == []


@dataclasses.dataclass
class Seen:
    """What a live process would know of one compile."""

    fullgraph: bool | None = False
    code: Code | None = dataclasses.field(default_factory=lambda: Code(qualname="f", file="m.py", line=1))
    block: str | None = "layers.0"
    block_class: str | None = "Block"
    under_checkpoint: bool = False
    thread: str | None = None

    def arguments(self) -> dict[str, Argument]:
        return {}

    def module_name(self) -> str | None:
        return None

    def argument_names(self) -> tuple[str, ...]:
        return ()

    def free(self) -> tuple[str, ...]:
        return ()

    def forward(self) -> Frame | None:
        return None

    def parameters(self) -> dict[str, str]:
        return {}

    def self_name(self) -> str | None:
        return None

    def misses(self, found: list[Miss]) -> list[Any]:
        return [(miss, None, {}) for miss in found]

    def limit(self) -> tuple[str, int] | None:
        return "recompile_limit", 8

    def guard_block(self, guard: Guard) -> str | None:
        return None

    def inner_block(self) -> tuple[str, str | None] | None:
        return None

    def exception(self) -> str:
        return ""


def metrics(**values: Any) -> Record:
    return Record("compilation_metrics", values, None, "0/8", 0, None, 1.0)


def test_a_limit_is_an_error_with_fullgraph_whatever_torch_calls_the_failure() -> None:
    reason = "Dynamo recompile limit exceeded"
    for fullgraph, failed, raised in (
        (True, "Unsupported", True),
        (False, "FailOnRecompileLimitHit", True),
        (False, "RecompileLimitExceeded", False),
        (None, "RecompileLimitExceeded", False),
    ):
        seen = Seen(fullgraph=fullgraph, thread="worker")
        [event] = Assembler().feed(metrics(fail_type=failed, fail_reason=reason), seen)
        assert (event.kind, event.limited.raised, event.limited.limit) == ("limit_hit", raised, 8)
        assert event.limited.thread == "worker"


def test_why_a_cuda_graph_was_skipped_is_kept_of_forward_and_backward() -> None:
    said = "skipping cudagraphs due to mutated inputs"
    forward = metrics(has_guarded_code=True, cudagraph_skip_reason=said)
    backward = dataclasses.replace(forward, name="bwd_compilation_metrics")
    for record in (forward, backward):
        [event] = Assembler().feed(record, None)
        assert event.compiled.cudagraph_skip == said


def test_the_line_that_fixed_a_size_is_read_from_torchs_record() -> None:
    stack = [
        {"line": 9, "name": "forward", "filename": "/me/m.py", "loc": "key = f'{n}'"},
        {"line": 4, "name": "__format__", "filename": "/x/site-packages/torch/__init__.py", "loc": "x"},
    ]
    data = {"symbol": "s0", "sources": ["L['x'].size()[1]"], "value": "6", "user_stack": stack}
    assembler = Assembler()
    record = Record("symbolic_shape_specialization", data, None, "0/0", 0, None, 1.0)
    assert assembler.feed(record, None) == []
    [event] = assembler.feed(Record("compilation_metrics", {}, None, "0/0", 0, None, 2.0), None)
    [symbol] = event.compiled.symbols
    assert symbol.line == Frame(file="/me/m.py", line=9, function="forward", code="key = f'{n}'")
    assert Event.from_dict(event.to_dict()) == event


def test_position_ids_of_one_row_do_not_make_the_batch_one_row() -> None:
    hidden, positions = torch.empty(4, 587, 64), torch.empty(1, 587, dtype=torch.long)
    assert batch_shape((hidden,), {"position_ids": positions}) == (4, 587)
    assert batch_shape((positions, torch.empty(587, 587)), {}) == (1, 587)


def test_a_member_is_named_without_the_dictionary_that_holds_it() -> None:
    from cftdiag.capture.live_compile import LiveCompile

    live, module = object.__new__(LiveCompile), object()
    live._name, live._module, live._frame_locals = "wrapped", module, {"self": module}
    source = "L['self'].__dict__['base_model']._modules['model'].__dict__['layers']._modules['0']"
    assert live._relative(source) == "wrapped.base_model.model.layers.0"
    assert live._relative("L['other'].__dict__['base_model']") is None


def test_a_value_is_shown_on_one_line() -> None:
    class Tree:
        def __repr__(self) -> str:
            return "Tree(\n  (leaf): Leaf()\n)"

    assert short_repr(Tree()) == f"{__name__}.{Tree.__qualname__}"
    assert short_repr("a\nb") == r"'a\nb'"
    assert len(short_repr("x" * 999)) == 200


def test_a_break_is_told_once_for_each_line_and_each_compile_of_a_frame() -> None:
    lines = [(Frame(file="model.py", line=n, function="forward"),) for n in (3, 4)]
    reported = Reported()
    assert reported.first("0/0", "item", lines[0], "layers.0")
    assert not reported.first("0/0", "item", lines[0], "layers.0"), "a restart"
    assert not reported.first("1/0", "item", lines[0], "layers.0"), "the frame that it bubbles up through"
    assert reported.first("0/0", "item", lines[1], "layers.0")
    assert reported.first("0/1", "item", lines[0], "layers.0"), "a later compile pays again"
    assert reported.first("0/0", "item", (), "layers.0")


def test_the_tap_reads_records_and_artifacts_that_were_asked_for() -> None:
    tap = Tap(
        lambda *record: None,
        lambda error: None,
        wanted=frozenset({"artifact", "dynamo_start"}),
        artifacts=frozenset({"recompile_reasons"}),
    )
    assert tap.wants("dynamo_start", None) and not tap.wants("inductor_output_code", None)
    assert tap.wants("artifact", "recompile_reasons") and not tap.wants("artifact", "fx_graph_runnable")
    assert tap.wants("artifact", None), "a record whose name is not known yet"
