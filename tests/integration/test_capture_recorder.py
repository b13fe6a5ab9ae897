"""The recorder against real torch: the traps of its hooks, one test each, and that it leaves no trace of
itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cftdiag.capture import Recorder, counting, track
from cftdiag.capture.cached_guards import probe
from cftdiag.details import ScalarArgument, TensorArgument
from cftdiag.events import Event

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

TRACE = logging.getLogger("torch.__trace")


class Block(nn.Module):
    """A block whose body is a function of (self, activation)."""

    def __init__(
        self, body: Callable[[Any, torch.Tensor], torch.Tensor] | None = None, index: int = 0
    ) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.body = body
        self.layer_idx = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x)
        return x if self.body is None else self.body(self, x)


def model_of(*blocks: Block) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(blocks)
    return model


def record(model: nn.Module, *batches: torch.Tensor, errors: bool = False, **kwargs: Any) -> Recorder:
    """Compile every block, run the batches through all of them."""
    with Recorder(model) as rec:
        for i, block in enumerate(model.layers):
            block.compile(
                backend=counting(kwargs.get("backend", "eager"), rec),
                **{k: v for k, v in kwargs.items() if k != "backend"},
            )
            track(block, f"layers.{i}", rec)
        for step, x in enumerate(batches, 1):
            rec.step = step
            try:
                for block in model.layers:
                    x = block(x)
                if x.requires_grad:
                    x.sum().backward()
            except Exception as error:
                if not errors:
                    raise
                rec.error(error)
    assert rec.problems == []
    return rec


def of(rec: Recorder, kind: str) -> list[Event]:
    return [event for event in rec.events if event.kind == kind]


def batch(length: int = 3, rows: int = 2, grad: bool = True) -> torch.Tensor:
    return torch.ones(rows, length, 4, requires_grad=grad)


def breaking(block: Any, x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x + 1


# -- the numbered traps --------------------------------------------------------------------------------------


def test_1_a_fullgraph_failure_is_a_break_event() -> None:
    rec = record(model_of(Block(breaking)), batch(), errors=True, fullgraph=True)
    [event] = of(rec, "graph_break")
    assert event.broke.fullgraph is True
    assert event.stack[-1].function == "breaking"
    # The exception that reached the loop is the same failure, not another error.
    assert of(rec, "error") == []
    assert [e.compiled.status for e in of(rec, "compile")] == ["failed"]


def test_2_a_limit_hit_is_not_a_break() -> None:
    with torch._dynamo.config.patch(recompile_limit=2):
        rec = record(model_of(Block()), *(batch(n) for n in (3, 5, 7, 9)), dynamic=False)
    [event] = of(rec, "limit_hit")
    assert (event.step, event.block, event.compile_id) == (3, "layers.0", "0/2")
    assert (event.limited.limit, event.limited.limit_kind, event.missed.raised) == (
        2,
        "recompile_limit",
        False,
    )
    assert of(rec, "graph_break") == []
    assert [e.step for e in of(rec, "recompile")] == [2]


def test_2_with_fullgraph_a_limit_hit_raises_and_still_tells_its_limit() -> None:
    with torch._dynamo.config.patch(recompile_limit=2):
        rec = record(
            model_of(Block()), *(batch(n) for n in (3, 5, 7)), errors=True, dynamic=False, fullgraph=True
        )
    [event] = of(rec, "limit_hit")
    assert (event.limited.limit, event.missed.raised) == (2, True)
    assert (of(rec, "graph_break"), of(rec, "error")) == ([], [])


def test_2_the_accumulated_limit_is_told_apart() -> None:
    with torch._dynamo.config.patch(accumulated_recompile_limit=2):
        rec = record(model_of(Block()), *(batch(n) for n in (3, 5, 7)), dynamic=False)
    [event] = of(rec, "limit_hit")
    assert (event.limited.limit, event.limited.limit_kind) == (2, "accumulated_recompile_limit")


def test_3_item_breaks_without_fullgraph_and_is_captured_with_it() -> None:
    def item(block: Any, x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    plain = record(model_of(Block(item)), batch(), dynamic=True)
    assert [e.broke.gb_id for e in of(plain, "graph_break")] == ["GB0124"]
    torch._dynamo.reset()
    full = record(model_of(Block(item)), batch(), dynamic=True, fullgraph=True)
    assert of(full, "graph_break") == []
    [compiled] = of(full, "compile")
    assert compiled.compiled.unbacked is True


def test_3_a_data_dependent_failure_without_a_gb_id_is_a_break_too() -> None:
    def branch(block: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if bool((x.detach() > 0).all()) else x

    rec = record(model_of(Block(branch)), batch(), errors=True, fullgraph=True)
    [event] = of(rec, "graph_break")
    assert event.broke.gb_id is None
    assert event.broke.gb_type == event.broke.exception == "UserError"
    assert "data-dependent" in event.broke.reason
    assert event.stack[-1].function == "branch"
    assert of(rec, "error") == []


def test_4_a_break_that_bubbles_up_is_told_once() -> None:
    rec = record(model_of(Block(breaking)), batch())
    assert len(of(rec, "compile")) > 1
    assert [e.compile_id for e in of(rec, "graph_break")] == ["0/0"]


def test_5_a_frame_that_is_skipped_has_no_graphs_although_counted_ok() -> None:
    def loop(block: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            torch._dynamo.graph_break()
        return x

    class Bare(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return loop(self, x)

    rec = record(model_of(Bare()), batch(grad=False))
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    assert rec.graphs == {}
    assert {e.compiled.graphs for e in of(rec, "compile")} == {0}
    assert "failed" in {e.compiled.status for e in of(rec, "compile")}


def test_6_requires_grad_of_the_first_entry_does_not_hide_a_changed_length() -> None:
    model = model_of(Block(), Block())
    rec = record(model, batch(3, grad=False), batch(5, grad=False), dynamic=False)
    recompiles = of(rec, "recompile")
    assert [(e.step, e.block) for e in recompiles] == [(1, "layers.1"), (2, "layers.0"), (2, "layers.1")]
    assert recompiles[0].guard is not None
    assert (recompiles[0].guard.expected, recompiles[0].guard.actual) == ("False", "True")
    for event in recompiles[1:]:
        assert event.guard is not None
        assert (event.guard.source, event.guard.expected, event.guard.actual) == (
            "L['x'].size()[1]",
            "3",
            "5",
        )
        assert event.missed.changed == {"L['x'].size()[1]": ("3", "5")}
    last = recompiles[-1]
    # All entries are kept, most recently used first. The first two fail by one guard each: the size is
    # checked after requires_grad.
    assert [(r.entry, r.failed, r.block) for r in last.reasons] == [
        ("0/2", 1, "layers.0"),
        ("0/1", 1, "layers.1"),
        ("0/0", 2, "layers.0"),
    ]
    assert [r.entry for r in last.reasons if r.closest] == ["0/1"]


def test_7_identical_blocks_share_an_entry_and_each_is_counted() -> None:
    rec = record(model_of(Block(), Block(), Block()), batch())
    assert len(of(rec, "compile")) == 1
    assert rec.graphs == {f"layers.{i}": {"0/0"} for i in range(3)}


def test_8_events_of_another_thread_are_recorded_and_its_own_config_is_told() -> None:
    model = model_of(Block())
    found: list[Recorder] = []

    def work() -> None:
        with torch._dynamo.config.patch(recompile_limit=1):
            found.append(record(model, batch(3), batch(5), dynamic=False))

    thread = threading.Thread(target=work)
    with Recorder(model) as outside:
        thread.start()
        thread.join()
    [event] = of(found[0], "limit_hit")
    assert event.limited.limit == 1
    assert [e.kind for e in outside.events] == [e.kind for e in found[0].events]
    assert found[0].graphs == {"layers.0": {"0/0"}}


def test_9_nothing_is_told_of_a_block_that_is_never_called() -> None:
    model = model_of(Block(), Block())
    with Recorder(model) as rec:
        for i, block in enumerate(model.layers):
            block.compile(backend=counting("eager", rec))
            track(block, f"layers.{i}", rec)
        model.layers[0](batch())
    # Only the absence in `graphs` tells.
    assert set(rec.graphs) == {"layers.0"}
    assert {e.block for e in rec.events} == {"layers.0"}


def test_10_under_a_checkpoint_the_miss_is_marked() -> None:
    from torch.utils.checkpoint import checkpoint

    block = Block()
    block.compile(backend="aot_eager", dynamic=False)
    with Recorder(model_of(block)) as rec:
        for length in (3, 5):
            checkpoint(block, batch(length), use_reentrant=False).sum().backward()
    [event] = of(rec, "recompile")
    assert event.under_checkpoint is True
    assert [e.under_checkpoint for e in of(rec, "compile") if e.region == "forward"] == [True, True]


# -- the closest entry ---------------------------------------------------------------------------------------


def test_an_index_of_the_block_is_told_with_both_values() -> None:
    def scaled(block: Any, x: torch.Tensor) -> torch.Tensor:
        return x * block.layer_idx

    rec = record(model_of(Block(scaled, 0), Block(scaled, 1), Block(scaled, 2)), batch())
    events = of(rec, "recompile")
    assert [e.block for e in events] == ["layers.1", "layers.2"]
    for i, event in enumerate(events):
        guard = event.guard
        assert guard is not None
        assert guard.source == "L['self'].layer_idx"
        assert (guard.expected, guard.actual, guard.value_type) == (str(i), str(i + 1), "int")
        assert event.stack[-1].code == "return x * block.layer_idx"
        assert event.stack[-1].file == __file__


def test_an_index_is_the_cause_although_a_tie_came_first_by_recency() -> None:
    def scaled(block: Any, x: torch.Tensor) -> torch.Tensor:
        return x * block.layer_idx

    model = model_of(Block(scaled, 0), Block(scaled, 1))
    rec = record(model, batch(3), batch(5), dynamic=False)
    # Step 2: each block has an entry of its own that differs by the length only; the other block's differs by
    # the index too.
    for event in of(rec, "recompile")[1:]:
        assert event.guard is not None
        assert event.guard.source == "L['x'].size()[1]"


def test_grad_mode_is_told_and_not_the_requires_grad_that_follows_from_it() -> None:
    block = Block()
    block.compile(backend="eager")
    with Recorder(model_of(block)) as rec:
        block(batch())
        with torch.no_grad():
            block(batch(grad=False))
    [event] = of(rec, "recompile")
    guard = event.guard
    assert guard is not None
    assert guard.expression.startswith("GLOBAL_STATE changed: grad_mode")
    assert (guard.expected, guard.actual) == ("True", "False")
    assert event.missed.changed["grad_mode"] == ("True", "False")


def test_a_shape_expression_tells_the_size_met_and_the_line() -> None:
    def padded(block: Any, x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[1] % 8 == 0 else x * 2

    rec = record(model_of(Block(padded)), batch(16), batch(24), batch(20), dynamic=True)
    [event] = of(rec, "recompile")
    guard = event.guard
    assert guard is not None
    assert guard.expression == "(x.size()[1] % 8) == 0"
    assert (guard.source, guard.actual) == ("L['x'].size()[1]", "20")
    assert event.stack[-1].code == "return x if x.shape[1] % 8 == 0 else x * 2"


@pytest.mark.parametrize(
    ("first", "second", "source", "expected", "actual"),
    [
        (dict(x=batch()), dict(x=batch().double()), "L['x']", "Float", "Double"),
        (
            dict(x=batch(), mask=None),
            dict(x=batch(), mask=torch.ones(4)),
            "L['mask']",
            "None",
            "Tensor(shape=[4], dtype=torch.float32)",
        ),
        (dict(x=batch(), k=1.5), dict(x=batch(), k=2.5), "L['k']", "1.5", "2.5"),
        (dict(x=batch(rows=2)), dict(x=batch(rows=1)), "L['x'].size()[0]", "2", "1"),
        (dict(x=batch()), dict(x=batch()[0]), "L['x']", "3", "2"),
    ],
    ids=["dtype", "none", "float", "size", "rank"],
)
def test_values_met_are_told_for_arguments(
    first: dict[str, Any], second: dict[str, Any], source: str, expected: str, actual: str
) -> None:
    def scale(x: torch.Tensor, mask: torch.Tensor | None = None, k: float = 1.0) -> torch.Tensor:
        return x * k if mask is None else x * mask

    compiled = torch.compile(scale, backend="eager")
    with Recorder() as rec:
        compiled(**first)
        compiled(**second)
    [event] = of(rec, "recompile")
    assert event.guard is not None
    assert (event.guard.source, event.guard.expected, event.guard.actual) == (source, expected, actual)
    assert rec.problems == []


def test_arguments_of_the_frame_are_told_by_name() -> None:
    def scale(x: torch.Tensor, k: int, flag: bool, mask: None, things: list[int]) -> torch.Tensor:
        return x * k

    with Recorder() as rec:
        torch.compile(scale, backend="eager")(batch(), 2, True, None, [1])
    found = of(rec, "compile")[0].arguments
    assert found["x"] == TensorArgument(
        shape=(2, 3, 4), dtype="float32", requires_grad=True, device="cpu", cls="Tensor"
    )
    assert found["k"] == ScalarArgument(value=2, type="int")
    assert found["flag"] == ScalarArgument(value=True, type="bool")
    assert found["mask"] == ScalarArgument(value=None, type="NoneType")
    assert "things" not in found


def test_error_on_recompile_raises_before_torch_traces_the_reasons_which_are_told_all_the_same() -> None:
    block = Block()
    block.compile(backend="eager", dynamic=False)
    with Recorder(model_of(block)) as rec, torch._dynamo.config.patch(error_on_recompile=True):
        block(batch(3))
        with pytest.raises(torch._dynamo.exc.RecompileError):
            block(batch(5))
    [event] = of(rec, "recompile")
    assert event.missed.raised is True
    assert event.guard is not None
    assert (event.guard.source, event.guard.actual) == ("L['x'].size()[1]", "5")


def test_a_backend_that_raises_is_an_error_event() -> None:
    def bad(module: Any, inputs: Any) -> Any:
        raise RuntimeError("no such kernel")

    rec = record(model_of(Block()), batch(), errors=True, backend=bad)
    [event] = of(rec, "error")
    assert (event.failed.type, event.failed.phase, event.block) == (
        "BackendCompilerFailed",
        "backend",
        "layers.0",
    )


def test_an_error_of_the_training_loop_is_recorded_on_request() -> None:
    with Recorder() as rec:
        rec.step = 7
        try:
            raise KeyError("batch")
        except KeyError as error:
            rec.error(error)
    [event] = rec.events
    assert (event.kind, event.step, event.failed.type, event.failed.phase) == (
        "error",
        7,
        "KeyError",
        "run",
    )
    assert event.stack[-1].code == 'raise KeyError("batch")'


# -- probing -------------------------------------------------------------------------------------------------


def test_probing_tells_which_lengths_would_hit_without_running_the_model() -> None:
    def padded(block: Any, x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[1] % 8 == 0 else x * 2

    block = Block(padded)
    rec = record(model_of(block), batch(16), dynamic=True)
    before = len(rec.events)
    with rec:
        found = {n: probe(Block.forward.__code__, {"self": block, "x": batch(n)}) for n in (24, 20)}
    assert len(rec.events) == before
    [(entry, ok, guard)] = found[24]
    assert (entry, ok, guard) == ("0/0", True, None)
    [(entry, ok, guard)] = found[20]
    assert not ok
    assert guard is not None
    assert (guard.expression, guard.actual) == (
        "(x.size()[1] % 8) == 0",
        "20",
    ) or guard.expression == "(L['x'].size()[1] % 8) == 0"
    assert probe(batch.__code__, {}) == []


# -- leaves torch as found -----------------------------------------------------------------------------------


def state() -> tuple[Any, ...]:
    import torch._dynamo.config as config
    from torch._dynamo.callback import callback_handler

    return (
        id(TRACE.handlers),
        list(TRACE.handlers),
        TRACE.level,
        list(callback_handler.start_callbacks),
        list(callback_handler.end_callbacks),
        config.save_config(),
        torch._dynamo.convert_frame._compile,
        torch._dynamo.exc.Unsupported.__init__,
        torch._dynamo.symbolic_convert.InstructionTranslatorBase.log_graph_break,
    )


def warm_up() -> None:
    """torch's own trace handler takes itself off at the first record; that is not ours to count."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))


def test_nothing_is_left_behind_after_breaks_recompiles_and_failures() -> None:
    with Recorder():
        warm_up()
    before = state()
    record(model_of(Block(breaking)), batch(3), batch(5))
    record(model_of(Block(breaking)), batch(3), errors=True, fullgraph=True)
    assert state() == before


def test_an_exception_inside_the_block_leaves_nothing_behind() -> None:
    before = state()
    with pytest.raises(KeyError), Recorder():
        raise KeyError("x")
    assert state() == before


def test_nested_and_overlapping_recorders_see_the_same_and_go_in_any_order() -> None:
    before = list(TRACE.handlers)
    model = model_of(Block())
    block = model.layers[0]
    block.compile(backend="eager", dynamic=False)
    outer, inner = Recorder(model), Recorder(model)
    outer.__enter__()
    inner.__enter__()
    block(batch(3))
    outer.__exit__(None, None, None)
    block(batch(5))
    inner.__exit__(None, None, None)
    assert [e.kind for e in outer.events] == ["compile"]
    assert [e.kind for e in inner.events] == ["compile", "recompile", "compile"]
    assert list(TRACE.handlers) == before


def test_a_recorder_may_be_entered_again_and_in_itself() -> None:
    model = model_of(Block())
    block = model.layers[0]
    block.compile(backend="eager", dynamic=False)
    rec = Recorder(model)
    for length in (3, 5):
        with rec, rec:
            block(batch(length))
        block(batch(length + 4))
    # Only what happened while it was open, each thing once.
    assert [e.kind for e in rec.events] == ["compile", "recompile", "compile"]


def test_what_on_event_raises_reaches_neither_the_user_nor_the_next_event() -> None:
    seen: list[str] = []

    def callback(event: Event) -> None:
        seen.append(event.kind)
        raise RuntimeError("a bug in the monitor")

    block = Block()
    block.compile(backend="eager", dynamic=False)
    with Recorder(model_of(block), on_event=callback) as rec:
        block(batch(3))
        block(batch(5))
    assert seen == ["compile", "recompile", "compile"] == [e.kind for e in rec.events]
    assert rec.problems == ["on_event: RuntimeError: a bug in the monitor"] * 3


def test_a_module_that_raises_on_every_access_costs_only_its_attribution() -> None:
    class Hostile(Block):
        def __getattr__(self, name: str) -> Any:
            if name == "_compiled_call_impl_probe":
                raise RuntimeError("no")
            return super().__getattr__(name)

        def __repr__(self) -> str:
            raise RuntimeError("no repr")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparison")

        __hash__ = nn.Module.__hash__

    block = Hostile()
    block.compile(backend="eager", dynamic=False)
    with Recorder(model_of(block)) as rec:
        block(batch(3))
        block(batch(5))
    assert [e.kind for e in rec.events] == ["compile", "recompile", "compile"]


def test_a_broken_live_view_does_not_cost_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    from cftdiag.capture.live_compile import LiveCompile

    def broken(*args: Any) -> Any:
        raise RuntimeError("another torch")

    monkeypatch.setattr(LiveCompile, "misses", broken)
    block = Block()
    block.compile(backend="eager", dynamic=False)
    with Recorder(model_of(block)) as rec:
        block(batch(3))
        block(batch(5))
    assert [e.kind for e in rec.events] == ["compile", "recompile", "compile"]
    assert "another torch" in rec.problems[0]


def test_set_logs_in_between_does_not_lose_the_tap() -> None:
    block = Block()
    block.compile(backend="eager", dynamic=False)
    with Recorder(model_of(block)) as rec:
        torch._logging.set_logs(recompiles=True)
        try:
            block(batch(3))
        finally:
            torch._logging.set_logs()
    assert [e.kind for e in rec.events] == ["compile"]


def test_the_first_record_of_a_process_is_not_lost(run_python: Callable[..., Any]) -> None:
    # torch's own handler takes itself off the list during the first record, and logging then skips the
    # handler behind it.
    done = run_python(
        """
        import torch
        from cftdiag.capture import Recorder
        torch.set_num_threads(1)
        with Recorder() as rec:
            torch._logging.trace_structured("artifact", lambda: {"name": "fx_graph_cache_hit", "encoding": "json"},
                                            payload_fn=lambda: "{}", expect_trace_id=False)
        print([e.kind for e in rec.events])
        """
    )
    assert done.stdout.strip().endswith("['cache']")


def test_the_tap_costs_nothing_per_call() -> None:
    block = Block()
    block.compile(backend="eager")
    with Recorder(model_of(block)) as rec:
        block(batch())
        calls: list[str] = []
        rec._tap.emit = lambda record: calls.append("emitted")  # type: ignore[method-assign]
        for _ in range(5):
            block(batch())
    assert calls == []


def test_torch_builds_no_record_that_nobody_reads(run_python: Callable[..., Any]) -> None:
    # In a process of its own: pytest reads torch's trace logger too.
    run_python(
        """
        import logging, torch
        from cftdiag.capture import Recorder
        trace = logging.getLogger("torch.__trace")
        own, built = trace.handlers, []

        def tell(name, /, **metadata):
            torch._logging.trace_structured(
                name, lambda: metadata, payload_fn=lambda: built.append(name) or "", expect_trace_id=False
            )

        with Recorder() as outer:
            tell("dynamo_start")  # torch's own handler takes itself off
            assert len(trace.handlers) == 1, trace.handlers
            with Recorder():
                tell("chromium_event")
                tell("compilation_metrics_runtime")
                # torch writes out the metadata of a graph, down to a user's own tensor subclass
                tell("artifact", name="aot_forward_graph_fw_metadata", encoding="string")
                assert built == ["dynamo_start"], built
                other = logging.NullHandler()
                trace.addHandler(other)
                tell("chromium_event")
                assert built == ["dynamo_start", "chromium_event"], built
        assert trace.handlers is own and own == [other], trace.handlers
        assert type(own) is list
        trace.removeHandler(other)
        tell("dynamo_start")
        assert len(built) == 2
        with Recorder():
            tell("artifact", name="recompile_reasons", encoding="json")
        assert built[2:] == ["artifact"], built
        """
    )


def test_graphs_are_kept_by_content_on_request() -> None:
    block = Block()
    block.compile(backend="aot_eager")
    with Recorder(model_of(block), keep_payloads=True) as rec:
        block(batch())
    names = [e.detail.name for e in of(rec, "graph_output")]
    assert "dynamo_output_graph" in names
    for event in of(rec, "graph_output"):
        [digest] = event.payloads.values()
        assert rec.payloads[digest]
        assert event.block == "layers.0"


def test_live_events_and_the_recorded_trace_of_the_same_run_agree(
    run_python: Callable[..., Any], tmp_path: Any
) -> None:
    done = run_python(
        """
        import json, sys, torch
        from cftdiag.capture import Recorder
        sys.path.insert(0, "tests/recordings")
        import programs
        torch.set_num_threads(1)
        with Recorder() as rec:
            for name in ("break", "lengths", "limit", "fullgraph"):
                programs.PROGRAMS[name]()
        assert rec.problems == [], rec.problems
        print(json.dumps([(e.kind, e.compile_id, e.region, [r.entry for r in e.reasons if r.closest]) for e in rec.events]))
        """,
        env={"TORCH_TRACE": str(tmp_path)},
    )
    import json

    from cftdiag.capture.trace import read_trace_dir

    live = [tuple(item) for item in json.loads(done.stdout.strip().splitlines()[-1])]
    recorded = [
        (e.kind, e.compile_id, e.region, [r.entry for r in e.reasons if r.closest])
        for e in read_trace_dir(tmp_path)
    ]
    assert live == recorded
    assert {"compile", "graph_break", "recompile", "limit_hit"} <= {kind for kind, *_ in live}


@pytest.mark.everything("20 s of g++; what is made of the reason that torch gives stays in the unit tests")
def test_a_cuda_graph_that_inductor_skips_is_told_with_its_reason() -> None:
    """The one reason for which Inductor skips a CUDA graph on a machine without CUDA."""
    from cftdiag.diagnose import diagnose

    options = {"triton.cudagraphs": True, "cpp_wrapper": True, "graph_partition": True}
    with Recorder() as rec, torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(lambda x: x.sin() + 1, options=options)(batch())
    [finding] = diagnose(rec.events)
    assert (finding.kind, finding.cause) == ("perf", "cudagraph_skip")
    assert "cpp-wrapper does not support graph partition" in finding.explanation
