"""Causes of graph breaks, errors and what behaviour shows, from synthetic events."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cftdiag.diagnose import Block, Context, Probes, diagnose
from cftdiag.diagnose.causes.break_on_value import branches
from cftdiag.diagnose.engine import places
from cftdiag.diagnose.engine.probes import LateHook, Numerics, SavedHook, Worst
from cftdiag.events import Code, Event, Frame, Guard, Reason
from cftdiag.findings import Finding, Where
from tests.unit.event_samples import detail as detail_of

CODE = Code(qualname="Block.forward", file="/home/me/model.py", line=10)
TORCH = "/env/lib/python3.11/site-packages/torch"
BLOCKS = tuple(Block(fqn=f"layers.{i}", cls="Block", kind="a", index=i) for i in range(4))
ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
SKIPPED = "Attempted to call function marked as skipped"
BUILTIN = "cannot determine source file for it (likely a C extension or builtin)"


def frame(line: int, code: str, function: str = "forward", file: str = "/home/me/model.py") -> Frame:
    return Frame(file=file, line=line, function=function, code=code)


def broken(
    gb_id: str | None, gb_type: str = "", code: str = "y = f(x)", line: int = 12, **kwargs: Any
) -> Event:
    stack = kwargs.pop("stack", (frame(90, "loss = model(x)", "train"), frame(line, code)))
    return Event(
        kind="graph_break",
        time=0.0,
        step=1,
        compile_id="0/0",
        block=kwargs.pop("block", "layers.0"),
        code=CODE,
        stack=stack,
        detail=detail_of(
            "graph_break",
            {"gb_id": gb_id, "gb_type": gb_type, "reason": gb_type, "fullgraph": False, **kwargs},
        ),
    )


def refused(event: Event, **kwargs: Any) -> Event:
    return dataclasses.replace(event, detail=dataclasses.replace(event.broke, fullgraph=True), **kwargs)


def the(found: list[Finding]) -> Finding:
    assert len(found) == 1, [(f.kind, f.cause) for f in found]
    return found[0]


BREAKS = [
    (broken("GB0124", ITEM, "n = x.sum().item()"), "tensor.item"),
    (broken("GB0124", ITEM, "if x.sum().item() > 3:"), "data_dependent_branch"),
    (
        broken(
            "GB0033", "Data dependent operator", "counts.tolist()", context="aten._local_scalar_dense.default"
        ),
        "tensor.tolist",
    ),
    (
        broken("GB0033", "Data dependent operator", "if torch.equal(x, y):", context="aten.equal.default"),
        "data_dependent_branch",
    ),
    (
        broken("GB0170", "Data-dependent branching", context="attempted to jump with TensorVariable()"),
        "data_dependent_branch",
    ),
    (
        broken(
            "GB0170",
            "Data-dependent branching",
            "if random.random() < s.drop:",
            context="attempted to jump with TensorVariable() random_value_0: graph input",
        ),
        "python_rng_branch",
    ),
    (
        broken(
            "GB0170",
            "Data-dependent branching",
            context="attempted to jump with UnspecializedPythonVariable()",
        ),
        "python_rng_branch",
    ),
    (
        broken(
            "GB0007",
            SKIPPED,
            context=f"module: <unknown module>, qualname: Random.random, skip reason: {BUILTIN}",
        ),
        "python_rng_branch",
    ),
    (broken("GB0036", "Dynamic shape operator", context="aten.nonzero.default"), "dynamic_output_shape"),
    (
        broken(
            "GB0291",
            "logging.Logger method not supported for non-export cases",
            context="method: <Logger toy (WARNING)>.warning",
        ),
        "logging_call",
    ),
    (
        broken("GB0007", SKIPPED, context=f"module: _warnings, qualname: warn, skip reason: {BUILTIN}"),
        "logging_call",
    ),
    (
        broken(
            "GB4841",
            "Unsupported python_type() call",
            context="GetAttrVariable(LoggingLoggerVariable(), handlers)",
        ),
        "logging_call",
    ),
    (broken("GB0059", "Failed to trace builtin operator", context="builtin print [] True"), "print_call"),
    (
        broken("GB0059", "Failed to trace builtin operator", context="builtin open [] False"),
        "unsupported_call",
    ),
    (
        broken(
            "GB0098", "Skip calling `torch.compiler.disable()`d function", context="<function side at 0x7fac>"
        ),
        "disabled_function",
    ),
    (
        broken(
            "GB0148",
            "Unsupported function call (delayed)",
            explanation="Reason: Optimized `nn.Module` is wrapped with `torch.compiler.disable`",
        ),
        "disabled_function",
    ),
    (
        broken(
            "GB0007",
            SKIPPED,
            context="module: torch.random, qualname: manual_seed, skip reason: file matches MOD_SKIPLIST",
        ),
        "rng_seed_call",
    ),
    (
        broken(
            "GB0007",
            SKIPPED,
            context="module: random, qualname: Random.seed, skip reason: file is under skip directory",
        ),
        "rng_seed_call",
    ),
    (broken("GB7650", "torch.Generator method", context="torch.Generator.manual_seed"), "rng_seed_call"),
    (
        broken(
            "GB0156",
            "Unsupported method call",
            context="call_method UserDefinedObjectVariable(_FuncPtr) __call__ []",
        ),
        "ffi_call",
    ),
    (
        broken("GB0007", SKIPPED, context=f"module: flash_kernels._C, qualname: fwd, skip reason: {BUILTIN}"),
        "ffi_call",
    ),
    (
        broken("GB0007", SKIPPED, context=f"module: time, qualname: time, skip reason: {BUILTIN}"),
        "unsupported_call",
    ),
    (broken("GB0083", "Module-level backwards hooks require compiled autograd."), "module_backward_hook"),
    (broken("GB0025", "Call to `torch._dynamo.graph_break()`"), "generic_break"),
    (broken("GB9999", "something new in torch 3"), "generic_break"),
    (broken("GB0377", "Call to `torch.compiler.disable()`"), "disabled_function"),
    (broken("GB0125", "Unsupported Tensor.requires_grad_() call"), "requires_grad_in_graph"),
    (broken("GB0242", "Attempted to call op with non-contiguous `out=` tensor"), "unsupported_call"),
    (broken("GB0045", "Encountered tensor.is_inference() during tracing"), "unsupported_call"),
    (broken("GB6622", "list_richcompare_nonconst"), "data_dependent_branch"),
    (
        broken(
            "GB0059", "Failed to trace builtin operator", context="builtin print [] True", in_checkpoint=True
        ),
        "graph_break_in_checkpoint",
    ),
    (broken("GB0124", ITEM, operator="torch.utils.checkpoint.checkpoint"), "graph_break_in_checkpoint"),
    (broken("GB0170", "Data-dependent branching", in_autograd_function=True), "autograd_function"),
    (
        broken(None, "UserError", "if n > 3:", reason="Could not guard on data-dependent expression u0 > 3"),
        "data_dependent_branch",
    ),
    (
        broken(
            None,
            "E",
            "torch.split(x, counts.tolist())",
            reason="Could not extract specialized integer from data-dependent expression u0",
        ),
        "tensor.tolist",
    ),
]


@pytest.mark.parametrize(
    ("event", "expected"), BREAKS, ids=[f"{e.broke.gb_id}-{c}-{i}" for i, (e, c) in enumerate(BREAKS)]
)
def test_break(event: Event, expected: str) -> None:
    found = the(diagnose([event], Context(blocks=BLOCKS)))
    assert (found.kind, found.cause, found.gb_id) == ("graph_break", expected, event.broke.gb_id)
    assert found.blocks == ("layers.*",)


@pytest.mark.parametrize(("graphs", "severity"), [(0, "error"), (2, "warning")])
def test_a_break_that_leaves_a_block_no_graph_is_an_error_though_fullgraph_captures_it(
    graphs: int, severity: str
) -> None:
    names = [b.fqn for b in BLOCKS]
    context = Context(
        blocks=BLOCKS, graphs=dict.fromkeys(names, graphs), fullgraph=dict.fromkeys(names, True)
    )
    assert the(diagnose([broken("GB0124", ITEM, in_checkpoint=True)], context)).severity == severity


def test_a_logger_that_is_asked_is_not_one_that_writes() -> None:
    """To leave out ``isEnabledFor`` is to take another branch."""
    event = broken(
        "GB0291",
        "logging.Logger method not supported for non-export cases",
        "if log.isEnabledFor(10):",
        context="method: <Logger toy (WARNING)>.isEnabledFor",
    )
    found = the(diagnose([event], Context(blocks=BLOCKS)))
    assert found.cause == "unsupported_call" and "calls `logging.Logger.isEnabledFor`" in found.explanation
    assert not [r for r in found.remedies if r.change]


def test_a_setting_is_put_back_only_where_it_was_changed() -> None:
    budget = "torch._functorch.config.activation_memory_budget"
    for config in ({}, {budget: 0.5}):
        numbers = Numerics(
            ok=False, backend="aot_eager", failed=("w.grad",), worst=Worst(name="w.grad"), config=config
        )
        found = the(diagnose([], Context(blocks=BLOCKS, probes=Probes(numerics=numbers))))
        assert any(budget in (r.change or {}) for r in found.remedies) is bool(config)


def test_an_assertion_is_mended_by_a_constant_message() -> None:
    code = 'assert top < 4096, f"position {top.item()}"'
    found = the(diagnose([broken("GB0170", "Data-dependent branching", code)], Context(blocks=BLOCKS)))
    assert found.cause == "data_dependent_branch"
    assert found.remedies[0].summary.startswith("Give the assertion a constant message")
    assert "not a constant text" in found.explanation


OUT = "Attempted to call op with non-contiguous `out=` tensor"


def test_remedies_of_a_call_that_is_known_stand_for_those_of_any_call() -> None:
    found = the(diagnose([broken("GB0242", OUT, "torch.mm(a, b, out=c)")], Context(blocks=BLOCKS)))
    assert [r.summary[:9] for r in found.remedies] == ["Drop out="]
    assert found.explanation.startswith("`torch.mm(a, b, out=c)` writes its result into a part of another")


def test_a_region_that_cannot_be_split_has_the_remedies_of_what_breaks_in_it() -> None:
    event = broken("GB0242", OUT, "torch.mm(a, b, out=c)", in_autograd_function=True)
    found = the(diagnose([event], Context(blocks=BLOCKS)))
    assert (found.cause, found.remedies[0].summary[:9]) == ("autograd_function", "Drop out=")
    item = the(diagnose([broken("GB0124", ITEM, in_checkpoint=True)], Context(blocks=BLOCKS)))
    assert item.remedies[0].change == {"torch._dynamo.config.capture_scalar_outputs": True}


def test_a_call_without_a_name_is_told_in_torchs_words() -> None:
    event = broken("GB0156", "Unsupported method call", explanation="Dynamo does not know how to trace it.")
    found = the(diagnose([event], Context(blocks=BLOCKS)))
    assert found.explanation == (
        "`y = f(x)` breaks the graph: Unsupported method call. Dynamo does not know how to trace it."
    )


def test_a_file_that_is_opened_is_not_printing() -> None:
    context = "Attempted SETUP_WITH/BEFORE_WITH/LOAD_SPECIAL on UserDefinedObjectVariable(TextIOWrapper)"
    event = broken("GB0142", "Unsupported context manager", "with open(path) as file:", context=context)
    assert the(diagnose([event], Context(blocks=BLOCKS))).cause == "generic_break"


def test_builtin_that_needs_a_tensors_number() -> None:
    context = "builtin range [<class 'torch._dynamo.variables.tensor.TensorVariable'>] False"
    event = broken("GB0059", "Failed to trace builtin operator", "for i in range(n(x)):", context=context)
    assert the(diagnose([event], Context(blocks=BLOCKS))).cause == "data_dependent_branch"


def test_what_torch_says_of_a_frame_that_a_break_has_cut_is_no_finding() -> None:
    branch = broken("GB0170", "Data-dependent branching", "if y.sum() > 0:", 14)
    cut = broken("GB8335", "Generator reconstruction with mutations", "for layer in layers:", 12)
    assert the(diagnose([branch, cut], Context(blocks=BLOCKS))).cause == "data_dependent_branch"
    assert the(diagnose([cut], Context(blocks=BLOCKS))).cause == "generic_break"


def test_only_print_itself_can_be_left_out_or_reordered() -> None:
    written = broken("GB0156", "Unsupported method call", context="call_method X(TextIOWrapper) write [] {}")
    printed = broken("GB0059", "Failed to trace builtin operator", context="builtin print [] True")
    found = [the(diagnose([e], Context(blocks=BLOCKS))) for e in (written, printed)]
    assert [f.cause for f in found] == ["print_call", "print_call"]
    assert [[r.change is not None for r in f.remedies] for f in found] == [[False], [False, True, True]]


def test_method_of_torchs_own_class_is_not_foreign_code() -> None:
    context = f"module: <unknown module>, qualname: TensorBase._make_wrapper_subclass, skip reason: {BUILTIN}"
    event = broken("GB0007", SKIPPED, context=context)
    assert the(diagnose([event], Context(blocks=BLOCKS))).cause == "unsupported_call"


def test_one_break_in_both_passes_though_one_names_no_line() -> None:
    hook = broken("GB8985", "requires_grad_() intermediate leaked as output", "args[0].requires_grad_(True)")
    nameless = refused(broken("GB7324", "returning intermediate with requires_grad_()", stack=()))
    context = Context(blocks=BLOCKS, fullgraph_breaks=(nameless,))
    assert the(diagnose([hook], context)).where.line == 12


def test_requiring_grad_of_a_tensor_of_the_forward_is_not_told_as_the_hooks_of_an_embedding() -> None:
    line = frame(12, "probe.requires_grad_(True)")
    hook = frame(1821, "args_result = hook(self, args)", "inner", f"{TORCH}/nn/modules/module.py")
    first = []
    for stack in ((line,), (hook, line)):
        event = broken("GB0125", "Unsupported Tensor.requires_grad_() call", stack=stack)
        first.append(the(diagnose([event], Context(blocks=BLOCKS))).remedies[0])
    assert "between the compiled blocks" in first[0].summary and first[0].change is None
    assert first[1].change == {"input_requires_grad": True}


def test_hook_goes_before_disabled_function() -> None:
    stack = (
        frame(12, "x + s.p(x)"),
        frame(1821, "args_result = hook(self, args)", "inner", f"{TORCH}/nn/modules/module.py"),
    )
    event = broken(
        "GB0098",
        "Skip calling `torch.compiler.disable()`d function",
        context="<function Block.__init__.<locals>.<lambda> at 0x7f>",
        stack=stack,
    )
    found = the(diagnose([event], Context(blocks=BLOCKS)))
    assert found.cause == "disabled_hook"
    assert found.where.code == "x + s.p(x)"


def test_autograd_function_is_shown_where_it_is_applied() -> None:
    stack = (frame(19, "return x + Scale.apply(x)"), frame(15, "amax = float(g.abs().max())", "backward"))
    event = broken("GB0124", ITEM, operator="autograd.Function", in_autograd_function=True, stack=stack)
    found = the(diagnose([event], Context(blocks=BLOCKS, fullgraph={b.fqn: True for b in BLOCKS})))
    assert (found.cause, found.where.line, found.severity) == ("autograd_function", 19, "warning")
    assert any("amax = float" in line for line in found.evidence)


SITE = "/env/lib/python3.11/site-packages"
SCRIPT = frame(5, "trainer.train()", "main", "/home/me/train.py")
BLOCK = frame(12, "x + s.attention(x)")
PLACES = {
    "torch's lines count only where nothing else is known": (
        (SCRIPT, BLOCK, frame(7, "g(x)", "g", f"{TORCH}/nn/functional.py")),
        CODE,
        BLOCK,
    ),
    "a library's line inside the compiled frame goes before its caller": (
        (SCRIPT, BLOCK, frame(3, "x.item()", "helper", f"{SITE}/einops/core.py")),
        CODE,
        frame(3, "x.item()", "helper", f"{SITE}/einops/core.py"),
    ),
    "the script that calls a compiled library function is no place": (
        (SCRIPT, frame(90, "f(x)", "compute_loss", f"{SITE}/trl/trainer.py"), frame(30, "torch.mm(a, b, out=c)", "fold", f"{SITE}/trl/kernel.py")),
        Code(qualname="fold", file=f"{SITE}/trl/kernel.py", line=20),
        frame(30, "torch.mm(a, b, out=c)", "fold", f"{SITE}/trl/kernel.py"),
    ),
    "a compiled function of torch is shown where it is called": (
        (SCRIPT, frame(40, "optimizer.step()", "step"), frame(9, "_adam(p)", "step", f"{TORCH}/optim/adam.py")),
        Code(qualname="Adam.step", file=f"{TORCH}/optim/adam.py", line=3),
        frame(40, "optimizer.step()", "step"),
    ),
    "functions of one name in one file": (
        (frame(80, "layer(x)"), BLOCK, frame(5, "x.item()")),
        CODE,
        frame(5, "x.item()"),
    ),
    "the standard library carries a call through": (
        (SCRIPT, BLOCK, frame(81, "return func(*args)", "inner", "/usr/lib/python3.11/contextlib.py")),
        CODE,
        BLOCK,
    ),
    "a resumed function": (
        (SCRIPT, frame(14, "y.item()", "torch_dynamo_resume_in_forward_at_12")),
        Code(qualname="torch_dynamo_resume_in_forward_at_12", file=CODE.file, line=12),
        frame(14, "y.item()", "torch_dynamo_resume_in_forward_at_12"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("stack", "code", "expected"), PLACES.values(), ids=list(PLACES))
def test_place_is_the_innermost_line_inside_the_compiled_frame(
    stack: tuple[Frame, ...], code: Code, expected: Frame
) -> None:
    event = dataclasses.replace(broken("GB0124", ITEM, stack=stack), code=code)
    found = the(diagnose([event], Context(blocks=BLOCKS)))
    assert (found.where.file, found.where.line, found.where.code) == (
        expected.file,
        expected.line,
        expected.code,
    )


def test_who_called_the_compiled_frame_is_evidence() -> None:
    inner = frame(9, "return f(x)", "inner", f"{TORCH}/_dynamo/external_utils.py")
    stack = (SCRIPT, BLOCK, frame(3, "x.item()", "helper", f"{SITE}/einops/core.py"), inner)
    found = the(diagnose([broken("GB0124", ITEM, stack=stack)], Context(blocks=BLOCKS)))
    assert found.evidence[:4] == (
        f"torch: GB0124: {ITEM}",
        "einops/core.py:3 in helper: x.item()",
        "me/model.py:12 in forward: x + s.attention(x)",
        "called from me/train.py:5 in main: trainer.train()",
    )


def test_logging_is_shown_where_it_is_asked_for() -> None:
    gb_type = "logging.Logger method not supported for non-export cases"
    helper = frame(300, "self.warning(text)", "warning_once", f"{SITE}/transformers/utils/logging.py")
    event = broken("GB0291", gb_type, stack=(SCRIPT, BLOCK, helper))
    assert the(diagnose([event], Context(blocks=BLOCKS))).where.code == BLOCK.code


def test_a_line_without_source_is_named_by_its_number() -> None:
    nameless = Frame(file="/home/me/model.py", line=12, function="forward")
    found = the(diagnose([broken("GB0124", ITEM, stack=(nameless,))], Context(blocks=BLOCKS)))
    assert found.explanation.startswith("`model.py:12` reads")


def test_a_line_without_a_file_is_named_by_its_function() -> None:
    assert places.named(Where(function="forward")) == "forward"
    assert places.named(Where()) == "the compiled code"


def test_severity_follows_the_fullgraph_pass() -> None:
    item = broken("GB0124", ITEM, "n = x.max().item()")
    every = {b.fqn: True for b in BLOCKS}
    none = dict.fromkeys(every, False)
    assert the(diagnose([item], Context(blocks=BLOCKS, fullgraph=every))).severity == "warning"
    assert (
        the(
            diagnose([item], Context(blocks=BLOCKS, fullgraph=none, fullgraph_breaks=(refused(item),)))
        ).severity
        == "error"
    )
    assert the(diagnose([item], Context(blocks=BLOCKS, wrap=True))).severity == "error"


def test_break_behind_the_one_that_stopped_fullgraph_is_judged_by_its_cause() -> None:
    first = broken(
        "GB0059", "Failed to trace builtin operator", "print(x)", 12, context="builtin print [] True"
    )
    second = broken("GB0124", ITEM, "n = x.max().item()", 14)
    context = Context(
        blocks=BLOCKS,
        fullgraph=dict.fromkeys((b.fqn for b in BLOCKS), False),
        fullgraph_breaks=(refused(first),),
    )
    found = diagnose([first, second], context)
    assert {(f.cause, f.severity) for f in found} == {("print_call", "error"), ("tensor.item", "warning")}


def test_scalar_that_feeds_a_later_branch() -> None:
    item = broken("GB0124", ITEM, "n = x.max().item()", 12)
    other = broken("GB0124", ITEM, "m = x.min().item()", 20)
    branch = refused(
        broken(
            None, "UserError", "if n > 3:", 14, reason="Could not guard on data-dependent expression u0 > 3"
        )
    )
    context = Context(
        blocks=BLOCKS, fullgraph=dict.fromkeys((b.fqn for b in BLOCKS), False), fullgraph_breaks=(branch,)
    )
    found = {f.where.line: f for f in diagnose([item, other], context)}
    assert {line: f.cause for line, f in found.items()} == {12: "data_dependent_branch", 20: "tensor.item"}
    assert any("if n > 3:" in line for line in found[12].evidence)


def test_item_on_a_branching_line_that_fullgraph_captures_is_no_branch() -> None:
    item = broken("GB0124", ITEM, "y = x / x.max().item() if flag(x) else x")
    found = the(diagnose([item], Context(blocks=BLOCKS, fullgraph={b.fqn: True for b in BLOCKS})))
    assert found.cause == "tensor.item"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if bool(torch.all(mask == 1)):", True),
        ("elif t.item() > 0:", True),
        ("while x.sum() < 3: x = x + 1", True),
        ("assert (x < 9).all()", True),
        ("y = a if t.item() else b", True),
        ("for i in range(int(t)):", True),
        ("n = x.max().item()", False),
        ("y = x / t.item() if flag else x", False),
        ("return x * float(g.abs().max())", False),
    ],
)
def test_branching_lines(code: str, expected: bool) -> None:
    assert branches(code) is expected


def test_only_blocks_that_ran_the_broken_code_are_named() -> None:
    event = broken("GB0025", "Call to `torch._dynamo.graph_break()`", block="layers.2")
    found = the(
        diagnose(
            [event],
            Context(blocks=BLOCKS, graphs={"layers.0": 1, "layers.1": 1, "layers.2": 2, "layers.3": 1}),
        )
    )
    assert found.blocks == ("layers.2",)


def test_recompile_of_a_resumed_function_is_evidence_of_the_break() -> None:
    item = broken("GB0124", ITEM, "n = x.max().item()", 12)
    resumed = Code(qualname="torch_dynamo_resume_in_forward_at_12", file="/home/me/model.py", line=12)
    guard = Guard(expression="___stack0 == 7", source="L['___stack0']", expected="7", actual="9")
    reason = Reason(entry="1/0", guard=guard, closest=True)
    again = Event(
        kind="recompile",
        time=1.0,
        step=2,
        compile_id="1/1",
        block="layers.0",
        code=resumed,
        guard=guard,
        reasons=(reason,),
    )
    found = the(diagnose([item, again], Context(blocks=BLOCKS)))
    assert found.cause == "tensor.item"
    assert any("___stack0 == 7" in line for line in found.evidence)


@pytest.mark.parametrize("argument", [True, False])
def test_what_waits_behind_a_break_is_told_with_it_where_it_is_no_work_of_the_break(argument: bool) -> None:
    """A list that the caller passes keeps its length when the break is gone; a local of the function may not
    even be there.
    """
    draw = broken("GB0148", "Data-dependent branching", "if random.random() < p: return x", 12)
    names = ("self", "x", "aux") if argument else ("self", "x")
    file = "/home/me/model.py"
    first = Event(
        kind="compile",
        time=0.5,
        step=1,
        compile_id="0/0",
        block="layers.0",
        code=Code(qualname="Block.forward", file=file, line=8),
        detail=detail_of("compile", {"status": "ok", "argument_names": names}),
    )
    guard = Guard(expression="len(L['aux']) == 1", source="L['aux']", expected="1", actual="2")
    again = Event(
        kind="recompile",
        time=1.0,
        step=1,
        compile_id="1/1",
        block="layers.1",
        code=Code(qualname="torch_dynamo_resume_in_forward_at_12", file=file, line=12),
        guard=guard,
        reasons=(Reason(entry="1/0", guard=guard, closest=True),),
    )
    found = {f.cause: f for f in diagnose([first, draw, again], Context(blocks=BLOCKS))}
    assert set(found) == {"data_dependent_branch"} | ({"container_len"} if argument else set())
    told = any("len(aux) == 1" in line for line in found["data_dependent_branch"].evidence)
    assert told is not argument


@pytest.mark.parametrize(
    "file, context, severity",
    [
        ("/x/torch/optim/optimizer.py", "Called `torch._dynamo.graph_break()`", "info"),
        ("/x/torch/_dynamo/external_utils.py", "module: torch.optim.adam, qualname: Adam.step, x", "info"),
        ("/x/torch/_dynamo/external_utils.py", "module: numpy, qualname: dot, x", "error"),
        ("/home/me/train.py", "module: torch.optim.adam, qualname: Adam.step, x", "error"),
    ],
)
def test_what_torch_puts_around_an_optimizers_step_is_no_fault(
    file: str, context: str, severity: str
) -> None:
    event = dataclasses.replace(
        broken("GB0007", "Attempted to call function marked as skipped", "optimizer.step()", context=context),
        code=Code(qualname="wrapper", file=file, line=1),
    )
    found = the(diagnose([event], Context(wrap=True)))
    assert found.severity == severity
    assert (
        found.explanation.startswith("torch itself breaks the graph")
        == (severity == "info")
        == (not found.remedies)
    )


@pytest.mark.parametrize(
    ("message", "told"), [("None", "User-inserted graph break."), ("here", "Message: here.")]
)
def test_a_break_that_was_asked_for_quotes_the_message_that_it_was_given(message: str, told: str) -> None:
    event = broken(
        "GB0041",
        "Call to `torch._dynamo.graph_break()`",
        "torch._dynamo.graph_break()",
        explanation=f"User-inserted graph break. Message: {message}",
    )
    assert the(diagnose([event], Context(blocks=BLOCKS))).explanation.endswith(told)


@pytest.mark.parametrize("again", ["miss", "anew", "before", "backward"])
def test_a_late_hook_is_in_code_that_was_compiled_from_nothing_afterwards(again: str) -> None:
    """After ``torch._dynamo.reset()`` it is; an entry that was added for another length serves that length alone."""
    hook = LateHook(block="layers.0", module="layers.0.p", hook="a.py:3 f", step=2)
    step = 1 if again == "before" else 2
    compile = Event(
        kind="compile",
        time=1.0,
        step=step,
        compile_id="0/1",
        block="layers.0",
        region="backward" if again == "backward" else "forward",
        detail=detail_of("compile", {"status": "ok"}),
    )
    missed = Event(kind="recompile", time=0.9, step=2, compile_id="0/1", block="layers.0")
    events = [missed, compile] if again == "miss" else [compile]
    found = diagnose(events, Context(blocks=BLOCKS, probes=Probes(late_hooks=(hook,))))
    assert ("late_hook_ignored" in {f.cause for f in found}) is (again != "anew")


@pytest.mark.parametrize(("step", "ignored"), [(None, True), (1, False), (2, True)])
def test_a_hook_on_one_block_is_ignored_where_another_blocks_code_serves_it(
    step: int | None, ignored: bool
) -> None:
    """Code that the block was given at its first call has the hook, though it came of a missed entry."""
    hook = LateHook(block="layers.1", module="layers.1.p", hook="a.py:3 f", step=1, without="layers.0")
    events = [
        Event(kind="recompile", time=0.9, step=step, compile_id="0/1", block="layers.1"),
        Event(
            kind="compile", time=1.0, step=step, compile_id="0/1", block="layers.1", region="forward",
            detail=detail_of("compile", {"status": "ok"}),
        ),
    ] if step else []  # fmt: skip
    found = diagnose(events, Context(blocks=BLOCKS, probes=Probes(late_hooks=(hook,))))
    told = [f for f in found if f.cause == "late_hook_ignored"]
    assert bool(told) is ignored
    if told:
        assert "is not on `layers.0`, which was compiled before" in told[0].explanation


def test_second_break_of_a_resumed_line_is_not_a_finding_of_its_own() -> None:
    first = broken(
        "GB0208",
        "torch.* op returned non-Tensor",
        "with fork_rng():",
        context="target: <function fork_rng at 0x7f>",
    )
    second = broken("GB0142", "Unsupported context manager", "with fork_rng():", resumed=True)
    elsewhere = broken("GB0142", "Unsupported context manager", "with other():", 30, resumed=True)
    assert [f.cause for f in diagnose([first, second], Context(blocks=BLOCKS))] == ["rng_seed_call"]
    assert {f.cause for f in diagnose([first, elsewhere], Context(blocks=BLOCKS))} == {
        "rng_seed_call",
        "generic_break",
    }


def raised(kind: str, message: str, **kwargs: Any) -> Event:
    return Event(
        kind="error",
        time=2.0,
        step=3,
        block=kwargs.pop("block", None),
        detail=detail_of("error", {"type": kind, "message": message, **kwargs}),
    )


METADATA = (
    "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.\n"
    "tensor at position 0:\nsaved metadata: {{'shape': torch.Size([{0}]), 'dtype': torch.{1}, 'device': device(type='cpu')}}\n"
    "recomputed metadata: {{'shape': torch.Size([{2}]), 'dtype': torch.{3}, 'device': device(type='cpu')}}"
)

ERRORS = [
    ("CheckpointError", METADATA.format("2, 8", "bfloat16", "2, 8", "float32"), "ac_dtype_mismatch"),
    (
        "CheckpointError",
        METADATA.format("2, 8", "bfloat16", "2, 8", "float32").replace("\n", " "),
        "ac_dtype_mismatch",
    ),
    ("CheckpointError", METADATA.format("8, 8", "float32", "2, 8", "float32"), "ac_recompute_other_graph"),
    (
        "CheckpointError",
        "A different number of tensors was saved during the original forward and recomputation.",
        "ac_recompute_other_graph",
    ),
    ("ConstraintViolationError", "Constraints violated (L['x'].size()[1])!", "constraint_violation"),
    ("UserError", "Constraints violated (L['x'].size()[1])! For more information", "constraint_violation"),
    (
        "RuntimeError",
        "This backward function was compiled with non-empty donated buffers which",
        "donated_buffer",
    ),
    (
        "RuntimeError",
        "torch.compile with aot_autograd does not currently support double backward",
        "double_backward",
    ),
    (
        "RuntimeError",
        "Expected a DTensor tangent but got a plain Tensor (tangent index: 0).",
        "unused_subclass_output",
    ),
    ("BackendCompilerFailed", "backend='inductor' raised: ...", "fullgraph_error"),
]


@pytest.mark.parametrize(("kind", "message", "expected"), ERRORS, ids=[f"{k}-{c}" for k, _, c in ERRORS])
def test_error(kind: str, message: str, expected: str) -> None:
    found = the(diagnose([raised(kind, message)], Context(blocks=BLOCKS)))
    assert (found.kind, found.cause, found.severity) == ("error", expected, "error")


@pytest.mark.parametrize(
    ("operator", "own"),
    [("own.soft_gain.default", "own::soft_gain"), ("aten.mm.default", None), ("torch.matmul", None)],
)
def test_an_operator_of_ones_own_is_mended_in_its_stand_in(operator: str, own: str | None) -> None:
    message = (
        "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed to run FX node with fake tensors: "
        f"call_function {operator}(*(FakeTensor(..., size=(2, 12, 32)),), **{{}}): got ValueError('too many values')\n"
        "  Hint: Your code may result in an error when running in eager.\n"
    )
    found = the(diagnose([raised("TorchRuntimeError", message)], Context(blocks=BLOCKS)))
    fixes = [r.summary for r in found.remedies if r.applicability != "diagnosis"]
    assert len(fixes) == (own is not None)
    assert ("running in eager" in found.explanation) == (own is None)  # the operator itself runs
    assert own is None or fixes[0].startswith(
        f"Mend what stands in for {own} while it is traced (its register_fake"
    )


def test_donated_buffers_of_a_backward_that_is_differentiated_again() -> None:
    message = (
        "This backward function was compiled with non-empty donated buffers which requires create_graph=False"
    )
    found = the(diagnose([raised("RuntimeError", message, create_graph=True)], Context(blocks=BLOCKS)))
    assert (found.cause, found.blocks) == ("double_backward", ("layers.*",))


def test_unused_output_is_shown_where_it_is_made_and_by_the_block_of_its_graph() -> None:
    message = (
        "During the backward, we encountered a tensor subclass where we guessed its\nmetadata incorrectly.\n"
        "Expected a DTensor tangent but got a plain Tensor (tangent index: 0).\n"
        "This error occurred in compiled graph [3/0].\n\nThe forward output was created here:\n"
        '  File "/home/me/model.py", line 13, in forward\n    return x, s * 2\n'
    )
    compiled = Event(kind="compile", time=1.0, compile_id="3/0", block="layers.2", code=CODE)
    found = the(diagnose([compiled, raised("RuntimeError", message)], Context(blocks=BLOCKS[2:3])))
    assert (found.blocks, found.where.line) == (("layers.2",), 13)
    assert found.explanation.startswith(
        "`return x, s * 2` makes an output of a compiled block that is a DTensor"
    )


def test_operator_that_raises_is_told_in_its_own_words() -> None:
    message = (
        "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed to run FX node with fake tensors: "
        "call_function mine.double.default(*(FakeTensor(...),), **{}): got RuntimeError('There was no fake impl "
        "registered for <CustomOpDef(mine::double)>. Please use `double.register_fake` to add it.')\n  Hint: no"
    )
    found = the(diagnose([raised("TorchRuntimeError", message)], Context(blocks=BLOCKS)))
    assert found.evidence[0].startswith(
        "TorchRuntimeError: mine.double.default raised RuntimeError: There was no"
    )
    assert found.remedies[0].summary.startswith("Give the operator a fake implementation")


def test_constraint_violation_names_the_line_that_fixes_the_size() -> None:
    message = (
        "Constraints violated (L['x'].size()[1])! For more information, run with TORCH_LOGS.\n"
        "  - You marked L['x'].size()[1] as dynamic but your code specialized it to be a constant (6).\n"
        'User stack:\n  File "/home/me/model.py", line 13, in forward\n    return x + self.position\n'
    )
    found = the(diagnose([raised("ConstraintViolationError", message)], Context(blocks=BLOCKS)))
    assert (found.where.line, found.where.code) == (13, "return x + self.position")
    assert "specialized it to be a constant (6)" in found.explanation


def test_limit_that_another_thread_does_not_see() -> None:
    guard = Guard(expression="k == 7", source="L['k']", expected="7", actual="8", value_type="int")
    limit = Event(
        kind="limit_hit",
        time=1.0,
        step=9,
        block="layers.0",
        code=CODE,
        guard=guard,
        reasons=tuple(
            Reason(entry=f"0/{i}", guard=guard, closest=i == 7, block="layers.0") for i in range(8)
        ),
        detail=detail_of("limit_hit", {"raised": True, "arguments": {"k": {"value": 8, "type": "int"}}}),
    )
    found = {(f.kind, f.cause) for f in diagnose([limit], Context(blocks=BLOCKS, limit=64))}
    assert found == {("limit_hit", "int_arg"), ("error", "limit_not_visible_in_thread")}
    assert {(f.kind, f.cause) for f in diagnose([limit], Context(blocks=BLOCKS, limit=8))} == {
        ("limit_hit", "int_arg")
    }


PROBES: list[tuple[Probes, dict[str, Any], tuple[str, str, str]]] = [
    (
        Probes(late_hooks=(LateHook(block="layers.0", module="layers.0.p", hook="a.py:3 f", step=2),)),
        {},
        ("error", "late_hook_ignored", "error"),
    ),
    (Probes(never_run=("layers.0",)), {}, ("error", "compiled_region_not_reached", "error")),
    (
        Probes(
            numerics=Numerics(
                ok=False,
                backend="inductor",
                failed=("x.grad",),
                worst=Worst(name="x.grad", eager=1, compiled=2, rel=1),
            )
        ),
        {},
        ("numerics", "silent_wrong_numerics", "error"),
    ),
    (
        Probes(saved_tensor_hooks=(SavedHook(block="layers.0", calls=6, hook="a.py:3 f"),)),
        {},
        ("perf", "saved_tensor_hooks_whole_graph", "warning"),
    ),
    (Probes(calls={"layers.0": 3}), {"graphs": {}}, ("perf", "graph_runs_eager", "warning")),
]


@pytest.mark.parametrize(("probes", "more", "expected"), PROBES, ids=[e[1] for _, _, e in PROBES])
def test_what_behaviour_shows(probes: Probes, more: dict[str, Any], expected: tuple[str, str, str]) -> None:
    found = the(diagnose([], Context(blocks=BLOCKS, probes=probes, **more)))
    assert (found.kind, found.cause, found.severity) == expected


def test_a_hook_is_placed_in_its_function() -> None:
    late = LateHook(block="layers.0", module="layers.0.p", hook="a.py:3 f", step=2, file="/x/a.py", line=3)
    saved = SavedHook(block="layers.0", calls=6, hook="a.py:3 f", file="/x/a.py", line=3)
    for probes in (Probes(late_hooks=(late,)), Probes(saved_tensor_hooks=(saved,))):
        found = the(diagnose([], Context(blocks=BLOCKS, probes=probes)))
        assert found.where == Where(file="/x/a.py", line=3, function="f")
        assert "a.py:3 f" in found.explanation


def test_skipped_cuda_graphs_are_counted_by_their_reason() -> None:
    skip = "skipping cudagraphs due to mutated inputs (1 instances). Found from : \n   File m.py"
    events = [
        Event(
            kind="compile",
            time=0.0,
            step=step,
            block=f"layers.{step}",
            code=CODE,
            detail=detail_of("compile", {"cudagraph_skip": skip}),
        )
        for step in (1, 2)
    ]
    found = the(diagnose(events, Context(blocks=BLOCKS)))
    assert (found.kind, found.cause, found.severity, found.count) == ("perf", "cudagraph_skip", "warning", 2)
    assert "2 time(s): skipping cudagraphs due to mutated inputs (1 instances)." in found.explanation
    assert found.blocks == ("layers.1", "layers.2") and found.where.file == CODE.file


def test_right_numerics_and_reached_blocks_are_no_findings() -> None:
    probes = Probes(numerics=Numerics(ok=True), calls={b.fqn: 1 for b in BLOCKS})
    assert diagnose([], Context(blocks=BLOCKS, probes=probes, graphs={b.fqn: 1 for b in BLOCKS})) == []


def test_block_without_a_graph_is_explained_by_its_break() -> None:
    event = broken("GB0036", "Dynamic shape operator", context="aten.nonzero.default")
    found = diagnose(
        [event], Context(blocks=BLOCKS, graphs={}, probes=Probes(calls={b.fqn: 1 for b in BLOCKS}))
    )
    assert [f.cause for f in found] == ["dynamic_output_shape"]


def whole(blocks: int) -> list[Finding]:
    event = Event(
        kind="compile",
        time=0.0,
        region="forward",
        block="<root>",
        code=CODE,
        detail=detail_of("compile", {"status": "ok", "ops": 12 * blocks}),
    )
    return diagnose(
        [event],
        Context(
            blocks=tuple(Block(fqn=f"layers.{i}", cls="B", kind="a", index=i) for i in range(blocks)),
            wrap=True,
        ),
    )


def test_many_blocks_in_one_graph() -> None:
    found = the(whole(24))
    assert (found.kind, found.cause, found.blocks) == ("perf", "compile_time_depth", ("<root>",))
    assert whole(2) == []


def test_ranks_that_recompile_alone() -> None:
    guard = Guard(expression="tensor 'x' size mismatch at index 1. expected 8, actual 12")
    reason = (Reason(entry="0/0", guard=guard, closest=True, block="layers.0"),)
    steps = [Event(kind="step", time=0.0, rank=r, step=2) for r in (0, 1)]
    alone = Event(
        kind="recompile", time=1.0, rank=1, step=2, block="layers.0", code=CODE, guard=guard, reasons=reason
    )
    both = [
        alone,
        Event(
            kind="recompile",
            time=1.0,
            rank=0,
            step=2,
            block="layers.0",
            code=CODE,
            guard=guard,
            reasons=reason,
        ),
    ]
    assert ("perf", "rank_divergent_recompile") in {
        (f.kind, f.cause) for f in diagnose([*steps, alone], Context(blocks=BLOCKS))
    }
    assert {f.cause for f in diagnose([*steps, *both], Context(blocks=BLOCKS))} == {"seq_len"}


def test_worst_findings_come_first() -> None:
    item = broken("GB0124", ITEM, "n = x.max().item()")
    error = raised("BackendCompilerFailed", "backend='inductor' raised: ...")
    found = diagnose([item, error], Context(blocks=BLOCKS, fullgraph={b.fqn: True for b in BLOCKS}))
    assert [f.severity for f in found] == ["error", "warning"]


def test_a_class_that_is_called_is_named_and_not_its_bases_constructor() -> None:
    context = (
        "call_method UserDefinedClassVariable(<class '_ctypes._SimpleCData'>) __new__ "
        "[UserDefinedClassVariable(<class 'ctypes.c_int'>), ConstantVariable(int: 32)] {}"
    )
    said = "Dynamo does not know how to trace method `__new__` of class `PyCSimpleType`"
    event = broken(
        "GB0156", "Unsupported method call", "w = ctypes.c_int(n)", context=context, explanation=said
    )
    found = the(diagnose([event], Context(blocks=BLOCKS)))
    assert found.cause == "unsupported_call"
    assert found.explanation == "`w = ctypes.c_int(n)` calls `ctypes.c_int`, which Dynamo does not trace."


def test_an_error_that_only_fullgraph_meets_in_a_broken_block_is_evidence_of_the_break() -> None:
    def error(block: str) -> Event:
        said = {"type": "PendingUnbackedSymbolNotFound", "message": "Pending unbacked symbols {zuf1}"}
        return Event(
            kind="error", time=1.0, step=1, block=block, code=CODE, detail=detail_of("error", said), stack=()
        )

    broke = broken("GB0124", ITEM, "n = x.sum().item()")
    two = (*BLOCKS[:2], Block(fqn="head", cls="Head", kind="b", index=None))
    found = the(diagnose([broke], Context(blocks=two, fullgraph_breaks=(error("layers.1"),))))
    assert (found.kind, found.severity) == ("graph_break", "error")
    assert any("PendingUnbackedSymbolNotFound" in line for line in found.evidence)
    apart = diagnose([broke], Context(blocks=two, fullgraph_breaks=(error("head"),)))
    assert {(f.kind, f.cause) for f in apart} == {
        ("graph_break", "tensor.item"),
        ("error", "fullgraph_error"),
    }


def test_an_error_that_the_line_of_a_break_raises_is_evidence_of_the_break() -> None:
    broke = broken("GB0124", "Unsupported autograd call", "y.backward()")
    twice = "Trying to backward through the graph a second time"

    def at(line: int) -> Event:
        return dataclasses.replace(raised("RuntimeError", twice), stack=(frame(line, "y.backward()"),))

    found = the(diagnose([broke, at(12)], Context(blocks=BLOCKS)))
    assert (found.kind, found.severity) == ("graph_break", "error")
    assert f"cut there, the step fails: {twice}" in found.evidence
    assert f"Cut there, the step fails: {twice}" in found.explanation
    apart = diagnose([broke, at(40)], Context(blocks=BLOCKS))
    assert {f.kind for f in apart} == {"graph_break", "error"}


@pytest.mark.parametrize(("step", "kinds"), [(2, {"graph_break", "recompile"}), (1, {"graph_break"})])
@pytest.mark.parametrize(
    "text",
    [
        "tensor 'self.table' dtype mismatch. expected Float, actual Double",
        "___check_obj_id(self.table, 1404), type=<class 'model.Kind'>",
    ],
)
def test_a_tensor_of_the_module_that_changes_between_steps_is_no_work_of_a_break(
    text: str, step: int, kinds: set[str]
) -> None:
    """In a function that is compiled on its own only because the graph broke, the change would be missed as well."""
    file, helper = "/home/me/model.py", Code(qualname="helper", file="/home/me/model.py", line=40)
    entered = Event(
        kind="compile",
        time=0.5,
        step=1,
        compile_id="0/0",
        block="layers.0",
        code=Code(qualname="Block.forward", file=file, line=8),
        detail=detail_of("compile", {"status": "ok"}),
    )
    made = dataclasses.replace(entered, compile_id="1/0", code=helper)
    guard = Guard(expression=text, source="L['self'].table")
    again = Event(
        kind="recompile",
        time=1.0,
        step=step,
        compile_id="1/1",
        block="layers.0",
        code=helper,
        guard=guard,
        reasons=(Reason(entry="1/0", guard=guard, closest=True),),
        detail=detail_of("recompile", {"self": "self"}),
    )
    broke = broken("GB0025", "Call to `torch._dynamo.graph_break()`")
    assert {f.kind for f in diagnose([entered, made, broke, again], Context(blocks=BLOCKS))} == kinds
