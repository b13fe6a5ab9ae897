"""Causes of recompiles from synthetic events: what torch says, the blocks and the data decide, never a name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cftdiag.check.judge import recompile_causes
from cftdiag.diagnose import Block, Context, diagnose
from cftdiag.events import Code, Event, Frame, Guard, Reason
from cftdiag.findings import Finding
from tests.unit.event_samples import detail as detail_of

CODE = Code(qualname="Block.forward", file="/home/me/model.py", line=10)
BLOCKS = tuple(Block(fqn=f"layers.{i}", cls="Block", kind="a", index=i) for i in range(12))


def compiled(cid: str = "0/0", block: str = "layers.0", step: int = 1, **arguments: Any) -> Event:
    return Event(
        kind="compile",
        time=0.0,
        step=step,
        compile_id=cid,
        region="forward",
        block=block,
        code=CODE,
        detail=detail_of("compile", {"arguments": arguments}),
    )


def missed(
    expression: str,
    *,
    block: str | None = "layers.0",
    entry_block: str | None = "layers.0",
    entry: str = "0/0",
    step: int = 2,
    kind: str = "recompile",
    code: Code = CODE,
    arguments: dict[str, Any] | None = None,
    detail: dict[str, Any] | None = None,
    **guard: Any,
) -> Event:
    read = Guard(expression=expression, **guard)
    return Event(
        kind=kind,
        time=1.0,
        step=step,
        compile_id="0/1",
        block=block,
        code=code,
        guard=read,
        reasons=(Reason(entry=entry, guard=read, closest=True, block=entry_block),),
        stack=(Frame(file="/home/me/model.py", line=12, function="forward", code="y = x + 1"),),
        detail=detail_of(kind, {"arguments": arguments or {}, **(detail or {})}),
    )


def tensor(*shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "float32", "requires_grad": True}


def the(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [(f.kind, f.cause) for f in findings]
    return findings[0]


def cause(event: Event, *others: Event, **context: Any) -> str:
    context.setdefault("blocks", BLOCKS)
    return the(diagnose([compiled(), *others, event], Context(**context))).cause


IN_TIME = [
    ("s.step == 0", {"actual": "1"}, "module_int_attr"),
    ("s.scale == 1.0", {"actual": "0.5"}, "module_float_attr"),
    ("s.disabled == False", {"actual": "True"}, "module_bool_attr"),
    ("s.mode == 'a'", {"actual": "'b'"}, "module_str_attr"),
    ("s.win == (1, 2)", {"actual": "(2, 2)"}, "module_str_attr"),
    ("s.cache is None", {"actual": "{}"}, "first_call_latch"),
    ("not hasattr(s, 'cc')", {}, "first_call_latch"),
    ("s._modules['d'].training == True", {"actual": "False"}, "training_flag"),
    ("len(s.win) == 2", {"actual": "3"}, "container_len"),
    ("___check_obj_id(s.fn, 1405), type=<class 'function'>", {}, "object_identity"),
    ("dict(type(s).__dict__)['k'] == 1", {"actual": "5"}, "class_attr"),
    ("G['K'] == 1", {"actual": "2"}, "global_value"),
    ("G['TABLE']['a'] == 1", {"actual": "2"}, "global_value"),
    ("GLOBAL_STATE changed: grad_mode ", {}, "grad_mode"),
    ("GLOBAL_STATE changed: num_threads default_dtype ", {}, "global_state"),
    ("___check_torch_function_mode_stack()", {}, "global_state"),
    ("self.param_groups[0]['lr'] == 0.001", {"actual": "0.0005"}, "optimizer_lr_float"),
    ("len(fn.__closure__[0].cell_contents) == 1", {"actual": "2"}, "closure_identity"),
    ("fn.__closure__[0].cell_contents == 1", {"actual": "2"}, "closure_identity"),
    ("___check_obj_id(fn.__code__, 1405), type=<class 'code'>", {}, "closure_identity"),
    ("fn.keywords['k'] == 1", {"actual": "2"}, "closure_identity"),
    ("tensor 'x' requires_grad mismatch. expected requires_grad=0", {}, "requires_grad"),
    ("tensor 'x' dtype mismatch. expected Float, actual BFloat16", {}, "dtype"),
    ("tensor 'x' stride mismatch at index 0. expected 6, actual 1", {}, "stride"),
    ("tensor 'x' rank mismatch. expected 2, actual 1", {}, "rank_change"),
    ("12 != x.size()[1]", {"actual": "12"}, "size_specialized"),
    ("x.stride()[0] == 16*x.size()[1]", {}, "stride"),
    (
        "kwargs['past_key_values'].layers[0].is_initialized == False",
        {"actual": "True", "owner": "cache"},
        "kv_cache",
    ),
    (
        "expected type of 'x' to be a tensor type, ' but found <class 'torch.AsyncCollectiveTensor'>",
        {},
        "tensor_type",
    ),
    ("(x.size()[1] % 8) == 0", {}, "shape_divisibility"),
    ("x.size()[1] == x.size()[0]", {}, "duck_shape"),
    ("y.storage_offset() == x.size()[1]", {}, "duck_shape"),
    ("2 <= x.size()[0]", {}, "size_0_1"),
    (
        "4096*x.size()[0]*x.size()[1] < 5242880",
        {"added": "_inductor/scheduler.py:3042 in can_fuse"},
        "inductor_fusion_threshold",
    ),
    (
        "257 <= x.size()[1] <= 1024",
        {"added": "_inductor/codegen/cpp.py:2100 in need_use_acc_helper"},
        "inductor_size_regime",
    ),
    ("something new in torch 3", {}, "generic_guard"),
]


@pytest.mark.parametrize(
    ("expression", "values", "expected"), IN_TIME, ids=[f"{e[:40]}" for e, _, _ in IN_TIME]
)
def test_value_that_changes_in_time(expression: str, values: dict[str, str], expected: str) -> None:
    event = missed(expression, arguments={"x": tensor(2, 6, 8)}, **values)
    assert cause(event) == expected


ARGUMENTS = [
    ("k == 0", {"actual": "1", "value_type": "int"}, {"k": {"value": 1, "type": "int"}}, "int_arg"),
    (
        "k == 2  # line  # a.py:2 in f (_dynamo/variables/tensor.py:2606 in evaluate_expr)",
        {},
        {"k": {"value": 3, "type": "int"}},
        "int_arg",
    ),
    (
        "___check_type_id(k, 140), type=<class 'float'>",
        {"value_type": "int"},
        {"k": {"value": 3, "type": "int"}},
        "int_arg",
    ),
    ("mask is None", {"value_type": "Tensor"}, {"mask": tensor(2, 6)}, "none_vs_tensor"),
    (
        "expected type of 'mask' to be a tensor type, ' but found <class 'NoneType'>",
        {},
        {"mask": {"value": None, "type": "NoneType"}},
        "none_vs_tensor",
    ),
    ("len(states) == 1", {"actual": "2"}, {}, "container_len"),
    (
        "___check_type_id(helper, 940), type=<class 'm.make.<locals>.H'>",
        {"value_type": "H"},
        {},
        "helper_class_identity",
    ),
    ("___check_obj_id(e, 1405), type=<class 'm.E'>", {}, {}, "object_identity"),
    ("x is y", {}, {"x": tensor(4), "y": tensor(4)}, "object_identity"),
]


@pytest.mark.parametrize(
    ("expression", "values", "arguments", "expected"), ARGUMENTS, ids=[e[0][:40] for e in ARGUMENTS]
)
def test_argument(expression: str, values: dict[str, str], arguments: dict[str, Any], expected: str) -> None:
    assert cause(missed(expression, arguments=arguments, **values)) == expected


BETWEEN_BLOCKS = [
    ("s.window == 4", {"actual": "None"}, "per_layer_attr"),
    ("s.window is None", {"actual": "4"}, "per_layer_attr"),
    ("s.window == 0", {"actual": "1"}, "layer_idx"),
    ("s._modules['attn'].layer_idx == 0", {"actual": "1"}, "layer_idx"),
    (
        "___check_type_id(s._modules['mlp'], 94), type=<class 'm.Dense'>",
        {"value_type": "Moe"},
        "per_layer_attr",
    ),
    ("len(s._modules['experts']._modules) == 3", {"actual": "4"}, "per_layer_attr"),
    (
        "expected type of 's._modules['p']._parameters['bias']' to be a tensor type, ' but found <class 'NoneType'>",
        {},
        "per_layer_attr",
    ),
    (
        "tensor 's._modules['p']._parameters['weight']' size mismatch at index 0. expected 8, actual 16",
        {},
        "per_layer_attr",
    ),
    ("KeyError on s._modules['mamba']", {}, "per_layer_attr"),
    (
        "tensor 's._modules['p']._parameters['weight']' requires_grad mismatch. expected requires_grad=0",
        {},
        "requires_grad",
    ),
]


@pytest.mark.parametrize(
    ("expression", "values", "expected"), BETWEEN_BLOCKS, ids=[e[0][:40] for e in BETWEEN_BLOCKS]
)
def test_value_that_differs_between_blocks(expression: str, values: dict[str, str], expected: str) -> None:
    assert cause(missed(expression, block="layers.1", entry_block="layers.0", step=1, **values)) == expected


def test_a_block_that_had_run_the_entry_before_changed_in_time() -> None:
    """Recomputation walks backwards: the first miss of a flipped flag is in another block than the one that
    compiled the entry.
    """
    event = missed("s.mp == True", block="layers.1", entry_block="layers.0", step=1, actual="False")
    assert cause(event, ran={"layers.1": ["0/0", "0/1"]}) == "module_bool_attr"
    assert cause(event, ran={"layers.1": ["0/1"]}) == "per_layer_attr"


def test_three_kinds_of_blocks_in_turn_are_no_change_in_time() -> None:
    def other(expected: str, met: str, block: str, entry: str, entry_block: str) -> Event:
        text = f"___check_type_id(s._modules['mixer'], 94), type=<class 'm.{expected}'>"
        more = {"actual": f"{met}(in=4)", "value_type": met, "detail": {"self": "s"}}
        return missed(text, block=block, entry=entry, entry_block=entry_block, step=1, **more)

    first, second = (
        other("Mamba", "Mlp", "layers.1", "0/0", "layers.0"),
        other("Mlp", "Attention", "layers.2", "0/1", "layers.1"),
    )
    assert [f.cause for f in diagnose([compiled(), first, second], Context(blocks=BLOCKS))] == [
        "per_layer_attr"
    ]


def test_an_argument_that_follows_the_kind_of_block_is_no_coincidence_of_sizes() -> None:
    options = {
        "arguments": {"cos": tensor(1, 8, 512)},
        "expected": "256",
        "actual": "512",
        "step": 1,
        "block": "layers.1",
    }
    guard = "tensor 'cos' size mismatch at index 2. expected 256, actual 512"
    made = compiled(cos=tensor(1, 8, 256), x=tensor(1, 8, 256))
    other_kind = {"self": "s", "changed": {"L['s'].head_dim": ["256", "512"]}}
    assert (
        cause(missed(guard, detail=other_kind, **options), made, compile_kwargs={"dynamic": True})
        == "per_layer_attr"
    )
    assert cause(missed(guard, **options), made, compile_kwargs={"dynamic": True}) == "duck_shape"


def test_attribute_of_an_argument_is_not_the_modules() -> None:
    event = missed("state.step == 0", actual="1", detail={"self": "self"})
    assert cause(event) == "int_arg"
    assert cause(missed("state.step == 0", actual="1", detail={"self": "state"})) == "module_int_attr"
    line = Frame(
        file="/home/me/model.py",
        line=12,
        function="forward",
        code="return self.linear(x) * FACTORS[state.step]",
    )
    assert cause(dataclasses.replace(missed("state.step == 0", actual="1"), stack=(line,))) == "int_arg"


def test_two_values_of_one_block_are_a_change_in_time() -> None:
    first = missed("s.phase == 0", block="layers.1", entry_block="layers.0", actual="5")
    second = missed("s.phase == 0", block="layers.1", entry_block="layers.0", actual="6", step=3)
    assert {f.cause for f in diagnose([compiled(), first, second], Context(blocks=BLOCKS))} == {
        "module_int_attr"
    }


def size(dim: int, expected: int, actual: int, shape: tuple[int, ...], **kwargs: Any) -> Event:
    text = f"tensor 'x' size mismatch at index {dim}. expected {expected}, actual {actual}"
    return missed(text, arguments={"x": tensor(*shape)}, **kwargs)


def test_dimensions_are_named_by_the_data_and_not_by_their_position() -> None:
    lengths, batches = (7, 9), (3, 3)
    assert cause(size(0, 7, 9, (9, 3, 8)), lengths=lengths, batch_sizes=batches) == "seq_len"
    assert cause(size(1, 3, 2, (9, 2, 8)), lengths=(9, 9), batch_sizes=(3, 2)) == "batch_dim"
    assert cause(size(2, 7, 9, (3, 4, 9, 9)), lengths=lengths, batch_sizes=batches) == "seq_len"


def test_dimensions_without_data_fall_back_to_position() -> None:
    assert cause(size(0, 4, 3, (3, 8))) == "batch_dim"
    assert cause(size(1, 5, 6, (2, 6, 8))) == "seq_len"


def test_tokens_of_a_flattened_batch_are_length() -> None:
    assert cause(size(0, 14, 18, (18, 8)), lengths=(7, 9), batch_sizes=(2, 2)) == "seq_len"
    assert cause(size(0, 14, 27, (27, 8)), lengths=(7, 9), batch_sizes=(2, 3)) == "seq_len"


def test_an_argument_that_became_none_is_told_before_what_was_looked_for_in_it() -> None:
    assert cause(missed("'k' in extra", value_type="NoneType")) == "none_vs_tensor"
    assert cause(missed("'k' in extra", value_type="dict")) == "container_len"


def test_size_one_is_special_only_when_the_dimension_was_dynamic() -> None:
    one = size(0, 1, 4, (4, 6, 8))
    assert cause(one) == "batch_dim"
    assert cause(one, compile_kwargs={"dynamic": True}) == "size_0_1"
    assert cause(size(0, 1, 4, (4, 6, 8), entry="0/2")) == "size_0_1"
    assert cause(size(0, 1, 4, (4, 6, 8), entry="0/2"), compile_kwargs={"dynamic": False}) == "batch_dim"


def test_length_that_was_fixed_because_it_equalled_another_dimension() -> None:
    made = compiled(x=tensor(2, 8, 8))
    event = size(1, 8, 12, (2, 12, 8))
    found = diagnose([made, event], Context(blocks=BLOCKS, compile_kwargs={"dynamic": True}))
    assert the(found).cause == "duck_shape"
    assert the(diagnose([made, event], Context(blocks=BLOCKS, lengths=(8, 12)))).cause == "seq_len"
    # a single row would be compiled apart whatever the size had been fixed by
    one = size(0, 2, 1, (1, 2, 8))
    found = diagnose(
        [compiled(x=tensor(2, 2, 8)), one], Context(blocks=BLOCKS, compile_kwargs={"dynamic": True})
    )
    assert the(found).cause == "size_0_1"


def test_range_of_lengths_is_a_comparison_in_the_code_and_not_the_zero_one_rule() -> None:
    event = missed("2 <= x.size()[1] <= 16", arguments={"x": tensor(2, 20, 8)})
    assert cause(event, lengths=(10, 20), batch_sizes=(2, 2)) == "size_specialized"
    event = missed("2 <= x.size()[0] <= 16", arguments={"x": tensor(1, 20, 8)})
    assert cause(event) == "size_0_1"


def test_inference_tensors_are_about_gradients() -> None:
    text = (
        "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, BackendSelect, ADInplaceOrView, AutogradCPU), "
        "actual DispatchKeySet(CPU, BackendSelect)"
    )
    assert cause(missed(text)) == "grad_mode"
    assert (
        cause(missed(text.replace("actual DispatchKeySet(CPU", "actual DispatchKeySet(CUDA")))
        == "tensor_type"
    )


def test_class_and_module_attributes_by_the_owner_that_the_recorder_saw() -> None:
    text = "G['config'].scale == 2.0"
    assert cause(missed(text, actual="3.0", owner="class")) == "class_attr"
    assert cause(missed(text, actual="3.0", owner="module")) == "global_value"


def test_wrapped_arguments_are_mapped_back() -> None:
    event = missed(
        "tensor 'args[0]' size mismatch at index 1. expected 5, actual 6",
        arguments={"x": tensor(2, 6, 8)},
        detail={"parameters": {"args[0]": "x"}},
    )
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS, lengths=(5, 6))))
    assert found.guard == "tensor 'x' size mismatch at index 1. expected 5, actual 6"
    assert "`x`" in found.explanation


def test_a_keyword_of_a_wrapper_is_named_as_the_call_names_it_and_torch_is_given_its_own_source() -> None:
    event = missed(
        "kwargs['stage'] == 0",
        actual="1",
        arguments={"stage": {"value": 1, "type": "int"}},
        detail={"parameters": {"kwargs['stage']": "stage"}},
    )
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "int_arg"
    assert found.explanation == "`stage` was 0 when the code was compiled and is 1 now."
    changes = [r.change for r in found.remedies if r.change is not None and "env" in r.change]
    assert changes == [{"env": {"TORCH_COMPILE_DYNAMIC_SOURCES": "L['kwargs']['stage']"}}]


def test_a_frozen_parameter_is_no_matter_of_the_blocks_input() -> None:
    event = missed(
        "tensor 'self._parameters['w']' requires_grad mismatch. expected requires_grad=1",
        detail={"self": "self"},
    )
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "requires_grad" and "`self.w`" in found.explanation
    assert found.remedies[0].summary.startswith("Freeze and unfreeze parameters before")
    assert not any("input" in r.summary for r in found.remedies)
    event = missed(
        "tensor 'self._buffers['t']' dtype mismatch. expected Float, actual Double", detail={"self": "self"}
    )
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert [r.summary for r in found.remedies] == [
        "Give self.t its dtype before the first compiled call, and leave it."
    ]


def test_a_list_of_modules_that_grows_is_named_as_its_author_names_it() -> None:
    event = missed("len(self._modules['more']._modules) != 1", actual="2", detail={"self": "self"})
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "container_len" and "`self.more` has another length" in found.explanation
    assert [r.summary for r in found.remedies] == ["Add modules to self.more before the first compiled call."]


@pytest.mark.parametrize(
    ("guard", "function"),
    [
        ("___check_obj_id(self.f.__code__, 1397), type=<class 'code'>", "self.f"),
        ("self._modules['mlp'].f.keywords['k'] == 1.0", "self.mlp.f"),
        ("fn.__closure__[0].cell_contents == 2", "fn"),
        ("___check_obj_id(G['helper'].__code__, 1397), type=<class 'code'>", "helper"),
    ],
)
def test_a_function_is_named_by_what_holds_it(guard: str, function: str) -> None:
    found = the(diagnose([compiled(), missed(guard)], Context(blocks=BLOCKS)))
    assert found.cause == "closure_identity" and found.explanation.startswith(f"`{function}` ")
    assert found.remedies[0].summary.startswith(f"Build {function} once")
    assert f"{function} needs none" in found.remedies[1].summary and len(found.remedies) == 2


@pytest.mark.parametrize(
    ("guard", "owner", "fix"),
    [
        (
            "self.scale == 1.0",
            "module",
            "self.register_buffer('scale', torch.tensor(1.0)) and self.scale.fill_",
        ),
        (
            "self._modules['mlp'].scale == 1.0",
            "module",
            "self.mlp.register_buffer('scale', torch.tensor(1.0))",
        ),
        ("self.cfg['scale'] == 1.0", None, "Hold self.cfg['scale'] in a tensor that is changed in place"),
        ("self.cfg.scale == 1.0", "object", "Hold self.cfg.scale in a tensor that is changed in place"),
    ],
)
def test_a_number_is_kept_in_a_buffer_of_the_module_that_holds_it(
    guard: str, owner: str | None, fix: str
) -> None:
    event = missed(guard, actual="2.0", owner=owner, detail={"self": "self"})
    line = Frame(file="/home/me/model.py", line=12, function="forward", code="x = x * (self.scale or scale)")
    event = dataclasses.replace(event, stack=(line,))
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "module_float_attr"
    assert fix in found.remedies[0].summary
    assert sum("register_buffer" in r.summary for r in found.remedies) == (owner == "module")


def test_a_part_of_a_module_that_is_replaced_is_chosen_before_the_first_call() -> None:
    guard = "___check_type_id(self._modules['act'], 94191), type=<class 'torch.nn.modules.activation.ReLU'>"
    found = the(diagnose([compiled(), missed(guard, detail={"self": "self"})], Context(blocks=BLOCKS)))
    assert found.cause == "helper_class_identity"
    assert found.remedies[0].summary.startswith("Choose self.act before the first compiled call")


@pytest.mark.parametrize(
    ("guard", "actual"),
    [("mode == 'a'", "'b'"), ("mode == True", "False"), ("mode == torch.float32", "torch.float16")],
)
def test_no_symbol_stands_for_a_word_or_a_flag(guard: str, actual: str) -> None:
    event = missed(guard, actual=actual, arguments={"mode": {"value": actual, "type": "str"}})
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "int_arg"
    assert [r.change for r in found.remedies] == [None, None]
    assert "variant" in found.remedies[1].summary


def test_a_list_that_the_block_is_given_is_to_be_passed_alike() -> None:
    event = missed("len(masks) == 1", actual="2", detail={"self": "self"})
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "container_len"
    assert [r.summary.split(" in every")[0] for r in found.remedies] == [
        "Pass masks with the same length and the same keys in the same order"
    ]


def test_a_tensor_that_is_given_twice() -> None:
    event = missed('Duplicate tensors found: ["opt[0]", "opt[1]"]', detail={"self": "self"})
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "object_identity"
    assert found.explanation.startswith("`opt[0]` is given twice in this call")
    assert [r.summary[:30] for r in found.remedies] == ["Pass a copy (opt[0].clone()) w"]
    apart = the(diagnose([compiled(), missed("x is y")], Context(blocks=BLOCKS)))
    assert apart.cause == "object_identity" and apart.remedies[0].summary.startswith(
        "Pass a copy (x.clone())"
    )
    assert (
        apart.explanation
        == "`x` was given in two places when the code was compiled; this call gives two tensors."
    )


def test_a_size_of_no_dimension_of_the_batch_is_not_called_its_length() -> None:
    text = "tensor '___from_numpy(table)' size mismatch at index 0. expected 8, actual 9"
    for name in ("table", "___from_numpy(table)"):
        event = missed(text.replace("___from_numpy(table)", name), arguments={name: tensor(9)})
        found = the(diagnose([compiled(), event], Context(blocks=BLOCKS, lengths=(6, 6), batch_sizes=(2, 2))))
        assert found.explanation.startswith("Dimension 0 of `table` is a size of its own")


def test_a_layer_of_torch_takes_no_tensor_for_its_number() -> None:
    event = missed("self._modules['drop'].p == 0.0", actual="0.1", owner="module", detail={"self": "self"})
    line = Frame(file="/home/me/model.py", line=12, function="forward", code="x = self.drop(x)")
    found = the(diagnose([compiled(), dataclasses.replace(event, stack=(line,))], Context(blocks=BLOCKS)))
    assert [r.summary for r in found.remedies] == [
        "Warm up with two different values before the first timed step."
    ]


@pytest.mark.parametrize(
    ("guard", "actual", "said", "sides"),
    [
        (
            "x.size()[1] <= 16",
            37,
            "holds for `x.size()[1] <= 16` only (37 now)",
            "one size on each side of 16",
        ),
        ("17 <= x.size()[1]", 9, "holds for `17 <= x.size()[1]` only (9 now)", "one size on each side of 17"),
        ("8 <= x.size()[1] <= 16", 37, "`8 <= x.size()[1] <= 16` only", "one size within 8 .. 16 and one on"),
    ],
)
def test_a_size_compared_with_a_number_is_compiled_apart(
    guard: str, actual: int, said: str, sides: str
) -> None:
    event = missed(guard, arguments={"x": tensor(2, actual, 8)})
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS, compile_kwargs={"dynamic": True})))
    assert found.cause == "size_specialized" and said in found.explanation
    assert any(sides in remedy.summary for remedy in found.remedies)


def test_two_lines_that_fix_a_size_are_two_findings() -> None:
    events = []
    for line, bound in ((12, 16), (30, 20)):
        event = missed(f"x.size()[1] <= {bound}", arguments={"x": tensor(2, 40, 8)}, step=line)
        frame = Frame(file="/home/me/model.py", line=line, function="forward", code="if long:")
        events.append(dataclasses.replace(event, stack=(frame,)))
    found = diagnose([compiled(), *events], Context(blocks=BLOCKS, compile_kwargs={"dynamic": True}))
    assert [(f.cause, f.where.line) for f in found] == [("size_specialized", 12), ("size_specialized", 30)]


def test_a_step_of_an_optimizer_is_placed_where_it_is_called() -> None:
    event = missed(
        "self.param_groups[0]['lr'] == 0.001",
        actual="0.0005",
        block=None,
        entry_block=None,
        code=Code(qualname="Adam.step", file="/x/site-packages/torch/optim/adam.py", line=214),
        detail={
            "caller": {"file": "/home/me/train.py", "line": 55, "function": "step", "code": "opt.step()"}
        },
    )
    stack = (Frame(file="/x/site-packages/torch/optim/adam.py", line=229, function="step", code="for group"),)
    found = the(diagnose([compiled(), dataclasses.replace(event, stack=stack)], Context(blocks=BLOCKS)))
    assert (found.where.file, found.where.line) == ("/home/me/train.py", 55)
    assert found.explanation == (
        "`optimizer.param_groups[0]['lr']` was 0.001 when the code was compiled and is 0.0005 now."
    )


def test_one_finding_gathers_steps_lengths_and_blocks() -> None:
    events = [size(1, 5, n, (2, n, 8), step=s, block=f"layers.{s % 2}") for s, n in ((2, 6), (3, 7))]
    found = the(
        diagnose([compiled(), *events], Context(blocks=BLOCKS[:2], lengths=(5, 6, 7), batch_sizes=(2, 2, 2)))
    )
    assert (found.kind, found.cause, found.severity, found.count) == ("recompile", "seq_len", "warning", 2)
    assert (found.blocks, found.steps, found.lengths) == (("layers.*",), (2, 3), (6, 7))


def test_two_attributes_are_two_findings() -> None:
    events = [missed("s.step == 0", actual="1"), missed("s.seen == 0", actual="1", step=3)]
    found = diagnose([compiled(), *events], Context(blocks=BLOCKS))
    assert [(f.cause, f.steps) for f in found] == [("module_int_attr", (2,)), ("module_int_attr", (3,))]


def test_limit_names_its_cause_and_the_blocks_that_run_eager() -> None:
    event = missed(
        "s.layer_idx == 7",
        block="layers.8",
        entry_block="layers.7",
        actual="8",
        kind="limit_hit",
        detail={"limit": 8},
    )
    graphs = {b.fqn: int(b.index < 8) for b in BLOCKS}
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS, graphs=graphs)))
    assert (found.kind, found.cause, found.severity) == ("limit_hit", "layer_idx", "error")
    assert found.blocks == ("layers.8", "layers.9", "layers.10", "layers.11")
    assert "4 of 12 blocks now run eager" in found.explanation


def test_checkpointing_warns_before_the_limit() -> None:
    found = the(diagnose([compiled(), missed("s.step == 0", actual="1")], Context(blocks=BLOCKS, ac="full")))
    assert "2 of 8 cache entries" in found.explanation


def test_change_in_force_is_not_offered_again() -> None:
    event = size(1, 5, 6, (2, 6, 8))

    def changes(**kwargs: Any) -> list[Any]:
        return [
            r.change
            for r in the(
                diagnose([compiled(), event], Context(blocks=BLOCKS, lengths=(5, 6), compile_kwargs=kwargs))
            ).remedies
        ]

    assert {"dynamic": True} in changes(dynamic=False)
    assert {"dynamic": "auto"} in changes(dynamic=False)
    assert {"dynamic": "auto"} not in changes()
    assert {"dynamic": True} not in changes(dynamic=True)
    assert {"mark_dynamic": {"x": [1]}} in changes()


def test_unsafe_remedies_come_last() -> None:
    event = missed("4096*x.size()[0] < 5242880", added="_inductor/scheduler.py:3042 in can_fuse")
    remedies = the(diagnose([compiled(), event], Context(blocks=BLOCKS))).remedies
    assert remedies[-1].unsafe
    assert not remedies[0].unsafe


def test_multiple_to_pad_to_comes_from_the_guard() -> None:
    event = missed("(x.size()[1] % 16) == 0", arguments={"x": tensor(2, 20, 8)})
    assert the(diagnose([compiled(), event], Context(blocks=BLOCKS))).remedies[0].change == {
        "pad_to_multiple_of": 16
    }


def test_a_mask_that_is_none_goes_before_the_container_it_is_asked_as() -> None:
    event = missed(
        "'global' in mask",
        actual="None",
        value_type="NoneType",
        arguments={"mask": {"value": None, "type": "NoneType"}},
    )
    assert cause(event) == "none_vs_tensor"
    assert cause(missed("'global' in mask", actual="{}", value_type="dict")) == "container_len"


@pytest.mark.parametrize(("lengths", "sizes"), [([8, 8], [2, 2]), ([8, 9], [2, 3])])
def test_a_dimension_of_all_tokens_is_the_length_not_the_batch(lengths: list[int], sizes: list[int]) -> None:
    tokens = lengths[1] * sizes[1]
    event = missed(
        f"tensor 'x' size mismatch at index 0. expected 16, actual {tokens}",
        arguments={"x": tensor(tokens, 64)},
    )
    assert cause(event, lengths=lengths, batch_sizes=sizes) == "seq_len"


def specialized(*sources: str, value: str = "6", line: int = 4) -> Event:
    made = compiled(x=tensor(2, 6, 8), y=tensor(2, 6))
    symbol = {
        "record": "symbolic_shape_specialization",
        "sources": list(sources),
        "value": value,
        "line": {"file": "/home/me/tables.py", "line": line, "function": "table", "code": "key = f'{n}'"},
    }
    return dataclasses.replace(
        made,
        detail=dataclasses.replace(
            made.compiled, symbols=detail_of("compile", {"symbols": [symbol]}).symbols
        ),
    )


def fixed_size(**options: Any) -> Event:
    text = "tensor 'x' size mismatch at index 1. expected 6, actual 9"
    return missed(text, source="L['x'].size()[1]", **options)


def test_a_size_that_the_code_fixes_is_told_with_the_line_that_does() -> None:
    event = fixed_size(arguments={"x": tensor(2, 9, 8), "y": tensor(2, 9)})
    context = Context(blocks=BLOCKS, lengths=[6, 9], batch_sizes=[2, 2], compile_kwargs={"dynamic": True})
    found = the(diagnose([specialized("L['x'].size()[1]", "L['y'].size()[1]"), event], context))
    assert (found.cause, found.where.file, found.where.line) == ("size_specialized", "/home/me/tables.py", 4)
    assert "dimension 1 of `x` into the constant 6" in found.explanation
    assert not any("dynamic=True" in r.summary for r in found.remedies)


def test_a_size_that_torch_only_looks_up_is_placed_where_its_equal_was_fixed() -> None:
    """Two symbols found equal: one is fixed by a line, the other where somebody next asks for it (torch: ``find``)."""
    table = {"file": "/home/me/tables.py", "function": "table"}
    symbols = [
        {
            "sources": ["L['w'].size()[0]"],
            "value": "8",
            "reason": "range_refined_to_singleton",
            "line": {**table, "line": 2},
        },
        {
            "sources": ["L['y'].size()[1]"],
            "value": "6",
            "reason": "range_refined_to_singleton",
            "line": {**table, "line": 4},
        },
        {"sources": ["L['x'].size()[1]"], "value": "6", "reason": "find", "line": {**table, "line": 5}},
    ]
    symbols = [{"record": "symbolic_shape_specialization", **s} for s in symbols]
    made = compiled(x=tensor(2, 6, 8), y=tensor(2, 6))
    details = dataclasses.replace(made.compiled, symbols=detail_of("compile", {"symbols": symbols}).symbols)
    event = fixed_size(arguments={"x": tensor(2, 9, 8), "y": tensor(2, 9)})
    context = Context(blocks=BLOCKS, lengths=[6, 9], batch_sizes=[2, 2], compile_kwargs={"dynamic": True})
    found = the(diagnose([dataclasses.replace(made, detail=details), event], context))
    assert (found.cause, found.where.line) == ("size_specialized", 4)


def test_a_size_that_was_equal_to_another_by_chance_is_no_fault_of_a_line() -> None:
    event = fixed_size(arguments={"x": tensor(2, 9, 8), "y": tensor(2, 6)})
    made = specialized("L['x'].size()[1]", "L['y'].size()[1]")
    assert (
        the(diagnose([made, event], Context(blocks=BLOCKS, compile_kwargs={"dynamic": True}))).cause
        == "duck_shape"
    )


@pytest.mark.parametrize(
    ("apart", "cause"), [("L['pair'][0].size()[2]", "duck_shape"), ("L['z'].size()[0]", "size_specialized")]
)
def test_the_next_compile_tells_which_dimensions_were_equal_by_chance(apart: str, cause: str) -> None:
    """The rotary tables of a tuple, as wide as the first length was long, are no argument with a shape."""
    event = fixed_size(arguments={"x": tensor(2, 9, 8)})
    made = specialized("L['x'].size()[1]", "L['pair'][0].size()[1]", "L['pair'][0].size()[2]")
    own = {"record": "create_symbol", "symbol": "s6", "val": "6", "source": apart}
    again = compiled(event.compile_id or "", x=tensor(2, 9, 8))
    again = dataclasses.replace(
        again,
        detail=dataclasses.replace(again.compiled, symbols=detail_of("compile", {"symbols": [own]}).symbols),
    )
    context = Context(blocks=BLOCKS, compile_kwargs={"dynamic": True})
    assert the(diagnose([made, event, again], context)).cause == cause
    assert recompile_causes([made, event, again], context) == {event.compile_id: cause}


def test_another_shape_of_a_parameter_is_no_length_of_the_batch() -> None:
    text = "tensor 's._modules['proj']._parameters['A']' size mismatch at index 0. expected 4, actual 8"
    event = missed(text, source="L['s']._modules['proj']._parameters['A']", arguments={"x": tensor(2, 8, 8)})
    context = Context(blocks=BLOCKS, lengths=[4, 8], batch_sizes=[2, 2], compile_kwargs={"dynamic": True})
    found = the(diagnose([compiled(x=tensor(2, 4, 8)), event], context))
    assert found.cause == "parameter_shape" and "largest one" in found.remedies[1].summary
    assert "parameter `s.proj.A` was 4 when the code was compiled and is 8 now" in found.explanation


def test_a_length_that_the_code_excludes_is_named() -> None:
    event = missed("12 != x.size()[1]", actual="12", arguments={"x": tensor(3, 12, 8)})
    found = the(diagnose([compiled(x=tensor(3, 10, 8)), event], Context(blocks=BLOCKS, lengths=[10, 12])))
    assert found.cause == "size_specialized" and "compares dimension 1 of `x` with 12" in found.explanation
    assert found.where.line == 12  # the guard's own line


WRAPPER = Code(qualname="checked.<locals>.inner", file="/home/me/model.py", line=3)


def test_blocks_of_several_classes_in_one_decorators_wrapper() -> None:
    classes = ("Sine", "Tanh", "Gate")
    blocks = tuple(Block(fqn=f"layers.{i}", cls=c, kind=c, index=i) for i, c in enumerate(classes))
    text = "___check_obj_id(fn.__code__, 140), type=<class 'code'>"
    event = missed(
        text, block="layers.1", entry_block="layers.0", step=1, code=WRAPPER, detail={"free": ["fn"]}
    )
    assert cause(event, blocks=blocks) == "shared_code_object"
    library = dataclasses.replace(WRAPPER, file="/x/site-packages/transformers/modeling_layers.py")
    for code, own in ((WRAPPER, True), (library, False)):
        found = the(diagnose([compiled(), dataclasses.replace(event, code=code)], Context(blocks=blocks)))
        summaries = [r.summary for r in found.remedies]
        assert any(s.startswith("Apply the decorator outside") for s in summaries) == own
        assert summaries[-1].startswith("Leave it so while there are fewer than 8 such classes")
    given = missed(
        "___check_type_id(args[0], 140), type=<class 'm.Sine'>",
        value_type="Tanh",
        block="layers.1",
        entry_block="layers.0",
        step=1,
        code=WRAPPER,
        detail={"free": ["fn"]},
    )
    assert cause(given, blocks=blocks) == "shared_code_object"
    same = tuple(dataclasses.replace(b, cls="Sine") for b in blocks)
    assert cause(event, blocks=same) == "closure_identity"
    alone = missed(text, block="layers.1", entry_block="layers.0", step=1)
    assert cause(alone, blocks=blocks) == "closure_identity"


def test_a_limit_is_of_all_blocks_that_share_the_code() -> None:
    blocks = tuple(Block(fqn=f"layers.{i}", cls=f"C{i}", kind=f"C{i}", index=i) for i in range(3))
    made = [dataclasses.replace(compiled(f"0/{i}", f"layers.{i}"), code=WRAPPER) for i in range(2)]
    hit = missed(
        "s.k == 1",
        actual="2",
        kind="limit_hit",
        block="layers.2",
        entry_block="layers.0",
        code=WRAPPER,
        detail={"limit": 8},
    )
    found = the(diagnose([*made, hit], Context(blocks=blocks)))
    assert found.kind == "limit_hit" and found.blocks == ("layers.*",)


def test_a_guard_without_a_line_is_placed_at_the_blocks_own_forward() -> None:
    call = Code(
        qualname="GradientCheckpointingLayer.__call__", file="/x/transformers/modeling_layers.py", line=89
    )
    own = {
        "file": "/x/transformers/models/q/modeling_q.py",
        "line": 300,
        "function": "Q.forward",
        "code": None,
    }
    event = dataclasses.replace(
        missed(
            "tensor 'x' size mismatch at index 1. expected 6, actual 9", code=call, detail={"forward": own}
        ),
        stack=(),
    )
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert (found.where.file, found.where.line) == (own["file"], 300)


@pytest.mark.parametrize(("sizes", "dropped"), [([4, 4, 3], True), ([4, 3, 5, 4], False)])
def test_dropping_the_last_batch_is_no_advice_where_sizes_change_all_the_time(
    sizes: list[int], dropped: bool
) -> None:
    event = missed(
        "tensor 'x' size mismatch at index 0. expected 4, actual 3",
        arguments={"x": tensor(3, 8, 8)},
        step=len(sizes),
    )
    context = Context(
        blocks=BLOCKS, lengths=[8] * len(sizes), batch_sizes=sizes, compile_kwargs={"dynamic": False}
    )
    found = the(diagnose([compiled(), event], context))
    assert found.cause == "batch_dim"
    assert any("drop_last" in str(r.change) for r in found.remedies) is dropped


@pytest.mark.parametrize(("expected", "actual", "said"), [(4, 1, True), (1, 4, True), (4, 3, False)])
def test_a_batch_of_one_says_that_dynamic_shapes_do_not_serve_it(
    expected: int, actual: int, said: bool
) -> None:
    found = the(diagnose([compiled(), size(0, expected, actual, (actual, 6, 8))], Context(blocks=BLOCKS)))
    assert found.cause == "batch_dim"
    assert ("compiled separately, with dynamic shapes too" in found.explanation) is said


def test_recompiles_of_a_helper_compiled_after_a_break_are_its_evidence() -> None:
    broken = Event(
        kind="graph_break",
        time=0.5,
        step=1,
        block="layers.0",
        code=CODE,
        stack=(Frame(file="/home/me/model.py", line=14, function="forward", code="y = helper(x)"),),
        detail=detail_of(
            "graph_break", {"gb_id": "GB0025", "gb_type": "Call to `torch._dynamo.graph_break()`"}
        ),
    )
    helper = Code(qualname="helper", file="/home/me/helpers.py", line=2)
    event = missed("___check_type_id(out, 94), type=<class 'm.Out'>", value_type="Other", code=helper)
    found = the(diagnose([compiled(), broken, event], Context(blocks=BLOCKS)))
    assert found.kind == "graph_break"
    assert any("recompiles what follows the break" in line for line in found.evidence)
    # a setting that a later step finds changed is missed in a whole block as well
    setting = missed("self.mode == 'a'", actual="'b'", entry="1/0", step=3, code=helper)
    made = dataclasses.replace(compiled("1/0"), code=helper)
    both = diagnose([compiled(), broken, made, setting], Context(blocks=BLOCKS))
    assert {f.cause for f in both} == {"generic_break", "module_str_attr"}
    grown = missed(
        "tensor 'self._parameters['a']' size mismatch at index 0. expected 3, actual 9",
        entry="1/0",
        step=3,
        code=helper,
    )
    both = diagnose([compiled(), broken, made, grown], Context(blocks=BLOCKS))
    assert {f.cause for f in both} == {"generic_break", "parameter_shape"}
    # of a frame that torch does not name nobody knows that it is a helper's
    nameless = dataclasses.replace(missed("s.step == 0", actual="1", step=1), code=None)
    both = diagnose([compiled(), broken, nameless], Context(blocks=BLOCKS))
    assert {f.cause for f in both} == {"generic_break", "module_int_attr"}
    at_once = dataclasses.replace(setting, step=1)
    assert len(diagnose([compiled(), broken, made, at_once], Context(blocks=BLOCKS))) == 1


SAYS = [
    ("s.step == 0", {}, "`s.step` was 0 when the code was compiled."),
    ("s.step == 0", {"actual": "1"}, "`s.step` was 0 when the code was compiled and is 1 now."),
    ("s.mode == 'a'", {"actual": "'b'"}, "`s.mode` was 'a' when the code was compiled and is 'b' now."),
    (
        "len(s.win) == 2",
        {},
        "`s.win` has another length, other keys or another order of them than when the code was compiled.",
    ),
    (
        "len(fn.__closure__[0].cell_contents) == 1",
        {},
        "`fn` carries something in its closure that was 1 long when the code was compiled.",
    ),
    (
        "___check_obj_id(fn.__code__, 1405), type=<class 'code'>",
        {},
        "`fn` is another function than when the code was compiled.",
    ),
    (
        "tensor 'x' rank mismatch. expected 2, actual 1",
        {},
        "`x` has 1 dimension here; the code was compiled for 2.",
    ),
    ("2 <= y.size()[0]", {}, "A dimension is 0 or 1: the guard `2 <= y.size()[0]` failed."),
]


@pytest.mark.parametrize(("expression", "values", "expected"), SAYS)
def test_an_explanation_says_what_is_known_and_nothing_else(
    expression: str, values: dict[str, str], expected: str
) -> None:
    event = missed(expression, arguments={"x": tensor(2, 6, 8)}, **values)
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.explanation == expected
    assert "None" not in found.explanation and not any("<" in r.summary for r in found.remedies)


def test_a_failed_recomputation_is_placed_where_it_ran_into_a_recompile() -> None:
    error = Event(
        kind="error",
        time=1.0,
        step=2,
        block="layers.1",
        stack=(Frame(file="/home/me/train.py", line=7, function="step", code="loss.backward()"),),
        detail=detail_of(
            "error",
            {
                "type": "CheckpointError",
                "message": "torch.utils.checkpoint: Recomputed values have different metadata\n"
                "saved metadata: {'dtype': torch.bfloat16}\nrecomputed metadata: {'dtype': torch.float32}",
            },
        ),
    )
    by_class = missed("___check_obj_id(forward.__code__, 1397), type=<class 'code'>", block="layers.2")
    switch = missed(
        "self.low == True", block="layers.1", entry_block="layers.1", actual="False", detail={"self": "self"}
    )
    events = [compiled(), by_class, switch, compiled("1/0", "layers.3"), error]
    found = {f.cause: f for f in diagnose(events, Context(blocks=BLOCKS[:4]))}
    told, met = found["ac_dtype_mismatch"], found["module_bool_attr"]
    assert (told.where, told.guard) == (met.where, met.guard) and met.where.line
    assert "raised at loss.backward()" in told.evidence
    assert told.remedies[0].summary.startswith("Leave self.low as it is from the forward")
    # without a recompile it stays where it was raised
    (alone,) = diagnose([compiled(), error], Context(blocks=BLOCKS[:4]))
    assert alone.where.code == "loss.backward()" and alone.guard is None
    assert not any(r.summary.startswith("Leave") for r in alone.remedies)


@pytest.mark.parametrize(
    ("step", "first"), [(1, "Each step runs these blocks"), (3, "Expected with evaluation")]
)
def test_a_part_of_each_step_without_gradients_is_no_evaluation(step: int, first: str) -> None:
    event = missed("GLOBAL_STATE changed: grad_mode", step=step)
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "grad_mode" and found.remedies[0].summary.startswith(first)


def test_more_values_of_what_torch_reads_as_a_constant_are_not_warmed_up_by_two() -> None:
    line = (Frame(file="/home/me/model.py", line=12, function="forward", code="x = self.drop(x)"),)
    events = [
        dataclasses.replace(missed(f"self.drop.p == {was}", actual=str(now), step=step), stack=line)
        for step, was, now in ((2, 0.3, 0.2), (3, 0.3, 0.1))
    ]
    found = the(diagnose([compiled(), *events], Context(blocks=BLOCKS)))
    assert found.cause == "module_float_attr"
    assert [r.summary[:11] for r in found.remedies] == ["torch reads"]


@pytest.mark.parametrize(("value", "first"), [("b'0'", "Read "), ("0.5", "Hold ")])
def test_a_text_is_not_to_be_held_in_a_tensor(value: str, first: str) -> None:
    event = missed(f"G['os'].environ._data[b'FLAG'] == {value}", actual="b'1'")
    found = the(diagnose([compiled(), event], Context(blocks=BLOCKS)))
    assert found.cause == "global_value" and found.remedies[0].summary.startswith(first)
