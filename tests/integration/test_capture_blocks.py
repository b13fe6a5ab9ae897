"""Every event names its block, whatever is wrapped around it."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cftdiag.capture import Recorder, counting, track
from cftdiag.torch_private.compile_frame import modules_calling

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Block(nn.Module):
    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.broken = broken

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        if self.broken:
            torch._dynamo.graph_break()
        return x + 1

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.helper(self.lin(x)).relu() * scale


class Model(nn.Module):
    def __init__(self, broken: tuple[int, ...] = (), n: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(i in broken) for i in range(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def inputs(length: int = 3) -> torch.Tensor:
    return torch.ones(2, length, 4, requires_grad=True)


def told(rec: Recorder) -> list[tuple[str, str | None, str | None]]:
    assert rec.problems == []
    return [(event.kind, event.block, event.block_class) for event in rec.events]


def test_a_block_compiled_in_place() -> None:
    model = Model()
    with Recorder(model) as rec:
        for layer in model.layers:
            layer.compile(backend="eager")
        model(inputs())
        model(inputs(5))
    assert told(rec) == [(kind, "layers.0", "Block") for kind in ("compile", "recompile", "compile")]


def test_the_block_that_missed_is_named_not_the_one_that_compiled() -> None:
    model = Model()
    with Recorder(model) as rec:
        for layer in model.layers:
            layer.compile(backend="eager")
        model.layers[0](inputs())
        model.layers[1](inputs(5))
    event = rec.events[1]
    assert event.block == "layers.1"
    assert [reason.block for reason in event.reasons] == ["layers.0"]


def test_torch_compile_around_a_block() -> None:
    model = Model()
    for i, layer in enumerate(model.layers):
        model.layers[i] = torch.compile(layer, backend="eager")
    with Recorder(model) as rec:
        model(inputs())
        model(inputs(5))
    assert told(rec) == [(kind, "layers.0", "Block") for kind in ("compile", "recompile", "compile")]


def test_a_model_wrapped_after_watching() -> None:
    model = Model()
    with Recorder(model) as rec:
        for i, layer in enumerate(model.layers):
            model.layers[i] = torch.compile(layer, backend="eager")
        model(inputs())
    assert told(rec) == [("compile", "layers.0", "Block")]


def test_a_checkpoint_wrapper_inside_the_compile() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Model()
    for i, layer in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(layer)
        model.layers[i].compile(backend="aot_eager")
    with Recorder(model) as rec:
        model(inputs()).sum().backward()
        model(inputs(5)).sum().backward()
    assert {(block, cls) for _, block, cls in told(rec)} == {("layers.0", "Block")}
    [recompile] = [event for event in rec.events if event.kind == "recompile"]
    # The wrapper's forward takes *args: the guard is on args[0], which is the block's x.
    assert recompile.guard is not None
    assert recompile.guard.source == "L['args'][0].size()[1]"
    assert recompile.missed.parameters["args[0]"] == "x"
    assert recompile.arguments["x"].shape == (2, 5, 4)


def test_keywords_of_a_wrapper_have_the_names_of_the_call() -> None:
    def any_keywords(forward: Any) -> Any:
        def wrapper(self: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
            return forward(self, x) * options["factor"]

        return wrapper

    class Wrapped(Block):
        forward = any_keywords(Block.forward)

    model = Model()
    model.layers[0] = Wrapped()
    model.layers[0].compile(backend="eager", dynamic=False)
    with Recorder(model) as rec:
        for factor in (2, 3):
            model.layers[0](inputs(), factor=factor)
    [recompile] = [event for event in rec.events if event.kind == "recompile"]
    assert recompile.guard is not None and recompile.guard.source == "L['options']['factor']"
    assert recompile.missed.parameters == {"options['factor']": "factor"}
    assert recompile.missed.caller is None


def test_a_compiled_step_of_an_optimizer_knows_its_caller() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    step = torch.compile(optimizer.step, backend="eager")
    with Recorder() as rec:
        step()
        optimizer.param_groups[0]["lr"] = 0.2
        step()
    [caller] = {event.missed.caller for event in rec.events if event.kind == "recompile"}
    assert caller is not None and (caller.file, caller.code) == (__file__, "step()")


def test_a_checkpoint_around_the_compile() -> None:
    from torch.utils.checkpoint import checkpoint

    model = Model(broken=(1,))
    for layer in model.layers:
        layer.compile(backend="eager")
    with Recorder(model) as rec:
        x = inputs()
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()
    assert told(rec)[0] == ("compile", "layers.0", "Block")
    [event] = [event for event in rec.events if event.kind == "graph_break"]
    assert event.block == "layers.1"
    # The break is in a block that is checkpointed from outside, not inside a checkpoint that was captured.
    assert (event.under_checkpoint, event.broke.in_checkpoint) == (True, False)


def test_a_break_in_a_captured_checkpoint_is_marked() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return checkpoint(self.helper, self.lin(x), use_reentrant=False)

    model = Model()
    model.layers = nn.ModuleList([Checkpointed(broken=True)])
    model.layers[0].compile(backend="eager")
    with Recorder(model) as rec:
        model(inputs())
    [event] = [event for event in rec.events if event.kind == "graph_break"]
    assert event.broke.in_checkpoint is True
    assert event.broke.operator == "torch.utils.checkpoint.checkpoint"


def test_transformers_gradient_checkpointing_layers() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=50,
    )
    model = Qwen3ForCausalLM(config).train()
    model.gradient_checkpointing_enable()
    for layer in model.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    with Recorder(model) as rec:
        for length in (12, 20):
            ids = torch.arange(length)[None] % 50
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert {(block, cls) for _, block, cls in told(rec)} == {("model.layers.0", "Qwen3DecoderLayer")}
    first = rec.events[0]
    assert first.arguments["hidden_states"].shape == (1, 12, 16)


def test_fsdp2_over_the_fake_process_group(run_python: Callable[..., Any]) -> None:
    done = run_python(
        """
        import json, torch, torch.distributed as dist
        from torch import nn
        from torch.distributed.fsdp import fully_shard
        from torch.testing._internal.distributed.fake_pg import FakeStore
        from cftdiag.capture import Recorder
        torch.set_num_threads(1)
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        mesh = dist.init_device_mesh("cpu", (2,))

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)
            def forward(self, x):
                return self.lin(x).relu()

        model = nn.Module()
        model.layers = nn.ModuleList(Block() for _ in range(2))
        for layer in model.layers:
            layer.compile(backend="eager")
            fully_shard(layer, mesh=mesh)
        with Recorder(model) as rec:
            for length in (3, 5):
                x = torch.ones(2, length, 8, requires_grad=True)
                for layer in model.layers:
                    x = layer(x)
        assert rec.problems == [], rec.problems
        print(json.dumps([(e.kind, e.block, e.block_class) for e in rec.events]))
        """
    )
    events = json.loads(done.stdout.strip().splitlines()[-1])
    assert events
    assert {(block, cls) for _, block, cls in events} == {("layers.0", "Block")}
    assert [kind for kind, _, _ in events].count("recompile") == 1


def test_resume_functions_and_helpers_belong_to_their_block() -> None:
    model = Model(broken=(0, 1))
    for layer in model.layers:
        layer.compile(backend="eager")
    with Recorder(model) as rec:
        model(inputs())
    assert {block for _, block, _ in told(rec)} == {"layers.0"}
    resumed = [event for event in rec.events if event.kind == "compile" and event.compiled.resumed]
    assert {event.region for event in resumed} == {
        event.code.qualname.rpartition(".")[2] for event in resumed if event.code
    }
    assert len(resumed) == 2


def test_a_whole_model_compile_names_the_block_that_breaks() -> None:
    model = Model(broken=(1,))
    model.compile(backend="eager")
    with Recorder(model) as rec:
        model(inputs())
    compiled = next(event for event in rec.events if event.kind == "compile")
    assert (compiled.block, compiled.block_class) == ("<root>", "Model")
    breaks = [event for event in rec.events if event.kind == "graph_break"]
    # Told by the model's frame, then by the block's and the helper's: one break.
    assert [(event.compile_id, event.block, event.block_class) for event in breaks] == [
        ("0/0", "layers.1", "Block")
    ]


def test_a_whole_model_fullgraph_failure_names_the_block_too() -> None:
    model = Model(broken=(1,))
    model.compile(backend="eager", fullgraph=True)
    with Recorder(model) as rec, pytest.raises(Exception, match="graph_break"):
        model(inputs())
    assert told(rec) == [("graph_break", "layers.1", "Block"), ("compile", "<root>", "Model")]


def test_a_whole_model_recompile_names_the_block_whose_attribute_changed() -> None:
    model = Model(n=3)
    model.compile(backend="eager")
    with Recorder(model) as rec:
        model(inputs())
        model.layers[2].broken = True
        model(inputs())
    event = next(event for event in rec.events if event.kind == "recompile")
    assert (event.block, event.missed.guard_block) == ("<root>", "layers.2")


def test_without_a_model_the_outermost_module_on_the_stack_is_the_root() -> None:
    model = Model()
    for layer in model.layers:
        layer.compile(backend="eager")
    with Recorder() as rec:
        model(inputs())
    assert told(rec) == [("compile", "layers.0", "Block")]


def test_a_function_outside_any_module_has_no_block() -> None:
    model = Model()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum()

    compiled = torch.compile(loss, backend="eager")
    with Recorder(model) as rec:
        # `model` is a local of this very frame: being near is not being called.
        compiled(model(inputs()))
    assert told(rec) == [("compile", None, None)]


def test_nested_module_lists_name_the_block_not_the_expert() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(Block(broken=True) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.experts[1](x)

    model = Model()
    model.layers = nn.ModuleList([Experts(), Experts()])
    for layer in model.layers:
        layer.compile(backend="eager")
    with Recorder(model) as rec:
        model(inputs())
    assert {block for _, block, _ in told(rec)} == {"layers.0"}


def test_named_blocks_win() -> None:
    model = Model(broken=(0,))
    model.compile(backend="eager")
    rec = Recorder()
    rec.watch(model, blocks=["layers.0.lin", "layers.0"])
    with rec:
        model(inputs())
    assert {event.block for event in rec.events if event.kind == "graph_break"} == {"layers.0"}


def test_watching_keeps_no_module_alive() -> None:
    import gc
    import weakref

    model = Model()
    ref = weakref.ref(model.layers[0])
    with Recorder(model) as rec:
        model.layers[0].compile(backend="eager")
        model(inputs())
    del model
    torch._dynamo.reset()
    gc.collect()
    assert ref() is None
    assert rec.events


@pytest.mark.parametrize("wrapped", [False, True])
def test_graphs_are_counted_on_the_block_that_runs_them(wrapped: bool) -> None:
    model = Model(n=3)
    with Recorder(model) as rec:
        backend = counting("eager", rec)
        for i in range(3):
            if wrapped:
                model.layers[i] = torch.compile(model.layers[i], backend=backend)
            else:
                model.layers[i].compile(backend=backend)
            track(model.layers[i], f"layers.{i}", rec)
        model(inputs())
    # One compile, three users: a shared entry counts for each block.
    assert rec.graphs == {f"layers.{i}": {"0/0"} for i in range(3)}


def test_a_block_that_falls_to_eager_has_no_graphs() -> None:
    class Eager(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            for _ in range(2):
                # A break in a loop cannot be resumed from: the whole frame runs eager, though torch counts it
                # as ok.
                torch._dynamo.graph_break()
            return x * 2

    model = Model()
    model.layers = nn.ModuleList([Block(), Eager()])
    with Recorder(model) as rec:
        for i, layer in enumerate(model.layers):
            layer.compile(backend=counting("eager", rec))
            track(layer, f"layers.{i}", rec)
        model(inputs())
    assert set(rec.graphs) == {"layers.0"}
    [event] = [event for event in rec.events if event.kind == "graph_break"]
    assert event.block == "layers.1"
    assert event.broke.skips_frame is True


def test_counting_gives_one_backend_object_for_all_blocks() -> None:
    rec = Recorder()
    assert counting("eager", rec) is counting("eager", rec)
    assert counting("eager", rec) is not counting("aot_eager", rec)


def test_tracking_is_undone_when_the_recorder_closes() -> None:
    model = Model()
    layer = model.layers[0]
    layer.compile(backend="eager")
    before = layer._compiled_call_impl
    with Recorder(model) as rec:
        track(layer, "layers.0", rec)
        assert layer._compiled_call_impl is not before
    assert layer._compiled_call_impl is before


def test_callers_whose_code_has_no_hash_hide_no_module() -> None:
    """Code that Dynamo has made may hold a dictionary among its constants."""
    seen: list[Any] = []

    class Inner(nn.Module):
        def forward(self) -> None:
            seen.append(modules_calling(sys._getframe())[0])

    inner = Inner()

    def through() -> None:
        inner()

    code = through.__code__
    unhashable = code.replace(co_consts=(*code.co_consts, {}))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unhashable"):
        hash(unhashable)

    class Outer(nn.Module):
        def forward(self) -> None:
            types.FunctionType(unhashable, globals(), closure=through.__closure__)()

    outer = Outer()
    outer()
    assert seen == [[inner, outer]]
