"""Recompile reasons as torch prints them, and the choice of the closest entry."""

from __future__ import annotations

import pytest

from cftdiag.capture.recompile_reasons import closest, in_file, parse, ranked, split
from cftdiag.conditions import STAGES
from cftdiag.guards import full_source


@pytest.mark.parametrize(
    ("text", "source", "expected", "actual", "stage"),
    [
        (
            "0/1: tensor 'x' size mismatch at index 1. expected 5, actual 6",
            "L['x'].size()[1]",
            "5",
            "6",
            "size",
        ),
        (
            "0/1: tensor 'x' stride mismatch at index 0. expected 8, actual 1",
            "L['x'].stride()[0]",
            "8",
            "1",
            "stride",
        ),
        (
            "0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0",
            "L['x']",
            "False",
            "True",
            "requires_grad",
        ),
        (
            "0/0: tensor 'x' dtype mismatch. expected Float, actual BFloat16",
            "L['x']",
            "Float",
            "BFloat16",
            "dtype",
        ),
        ("0/0: tensor 'x' rank mismatch. expected 3, actual 2", "L['x']", "3", "2", "rank"),
        (
            "0/0: tensor 'args[0]' size mismatch at index 1. expected 5, actual 6",
            "L['args'][0].size()[1]",
            "5",
            "6",
            "size",
        ),
        (
            "0/0: self.layer_idx == 3  # x * self.layer_idx  # b.py:7 in forward",
            "L['self'].layer_idx",
            "3",
            None,
            "value",
        ),
        (
            "0/0: mask is None  # if mask is not None:  # b.py:7 in forward",
            "L['mask']",
            "None",
            None,
            "value",
        ),
        (
            "0/0: len(fn.__closure__[0].cell_contents) == 2",
            "L['fn'].__closure__[0].cell_contents",
            "2",
            None,
            "value",
        ),
        ("0/0: GLOBAL_STATE changed: grad_mode ", None, None, None, "global_state"),
        (
            "0/0: (x.size()[1] % 8) == 0  # (_inductor/ir.py:470 in is_aligned_realized_tensor)",
            "L['x'].size()[1]",
            None,
            None,
            "shape",
        ),
        (
            "0/0: 2 <= x.size()[0]  # return x  # b.py:3 in f (user code shown is first use)",
            "L['x'].size()[0]",
            None,
            None,
            "shape",
        ),
        ("0/0: ___stack0 == True", "L['___stack0']", "True", None, "value"),
        (
            "0/0: ___check_obj_id(self.act, 140), type=<class 'function'>",
            "L['self'].act",
            "<class 'function'>",
            None,
            "identity",
        ),
        ("0/0: ___check_type_id(x, 940), type=<class 'int'>", "L['x']", "<class 'int'>", None, "type"),
        (
            "0/0: expected type of 'x' to be a tensor type, ' but found <class 'a.B'>",
            "L['x']",
            "Tensor",
            "<class 'a.B'>",
            "type",
        ),
        ("0/0: something never seen", None, None, None, "other"),
    ],
)
def test_every_form_is_read(
    text: str, source: str | None, expected: str | None, actual: str | None, stage: str
) -> None:
    miss = parse(text)
    guard = miss.guard
    assert (guard.source, guard.expected, guard.actual, guard.condition.stage) == (
        source,
        expected,
        actual,
        stage,
    )
    assert miss.entry == text[:3]
    assert "#" not in guard.expression


def test_the_place_that_added_a_guard_is_kept_apart_from_the_users_line() -> None:
    miss = parse(
        "0/0: (x.size()[1] % 8) == 0  # if n % 8:  # src/b.py:12 in forward (_dynamo/variables/tensor.py:2606 in evaluate_expr)"
    )
    assert miss.guard.added == "_dynamo/variables/tensor.py:2606 in evaluate_expr"
    [frame] = miss.stack
    assert (frame.file, frame.line, frame.function, frame.code) == ("src/b.py", 12, "forward", "if n % 8:")


def test_hints_are_no_part_of_the_place() -> None:
    miss = parse(
        "0/0: self.i == 0  # y * self.i  # b.py:6 in forward (HINT: torch.compile considers integer attributes static (see docs).)"
    )
    assert miss.guard.added == "b.py:6 in forward"


def test_a_user_stack_wins_over_the_shortened_comment() -> None:
    text = '0/1: self.i == 0  # b.py:6 in forward\nUser stack trace:\n  File "/home/u/b.py", line 6, in forward\n    y * self.i'
    [frame] = parse(text).stack
    assert frame.file == "/home/u/b.py"


def test_a_path_cut_in_the_middle_of_a_name_is_completed_from_the_compiled_file() -> None:
    miss = in_file(parse("0/0: self.i == 0  # y * self.i  # mp/h/b.py:6 in forward"), "/tmp/h/b.py")
    assert miss.guard.added == "/tmp/h/b.py:6 in forward"
    assert miss.stack[0].file == "/tmp/h/b.py"
    other = in_file(parse("0/0: self.i == 0  # y * self.i  # optim/adam.py:6 in step"), "/tmp/h/b.py")
    assert other.guard.added == "optim/adam.py:6 in step"


@pytest.mark.parametrize(
    ("payload", "count"),
    [("0/0: a == 1", 1), ('[\n"0/1: a == 1",\n"0/0: a == 2"\n]', 2), ("", 0), (["0/0: x", "0/1: y"], 2)],
)
def test_payloads_of_one_and_of_several_entries(payload: str | list[str], count: int) -> None:
    assert len(split(payload)) == count


def test_compiled_autograd_ids_are_entries_too() -> None:
    assert parse("!0/1/2: a == 1").entry == "!0/1/2"


def test_closest_is_the_entry_with_the_fewest_failing_guards() -> None:
    # The first fails by requires_grad and by size, the second by size only.
    assert closest([(2, "requires_grad", False), (1, "size", False)]) == 1


def test_a_tie_goes_to_the_entry_of_the_same_block_which_tells_what_has_changed_since() -> None:
    assert closest([(1, "size", False), (1, "type", True)]) == 1
    assert closest([(1, "size", False), (2, "type", True)]) == 0
    # counts unknown: what torch checked last came closest
    assert closest([(None, "size", False), (None, "requires_grad", True)]) == 0


def test_then_to_the_property_that_torch_checks_last_then_to_the_most_recent() -> None:
    assert closest([(1, "requires_grad", False), (1, "size", False)]) == 1
    assert closest([(1, "size", False), (1, "size", True)]) == 1
    assert closest([(1, "size", False), (1, "size", False)]) == 0
    assert closest([]) is None


def test_an_entry_of_another_kind_of_object_is_never_the_closest() -> None:
    assert closest([(1, "type", False), (3, "shape", True)]) == 1
    # nothing of its own: what differs between the kinds is the reason
    assert closest([(1, "type", False), (3, "shape", False)]) == 0


def test_a_part_that_is_not_there() -> None:
    for text, source in (
        ("KeyError on self._modules['mamba']", "L['self']._modules['mamba']"),
        ("getattr failed on source x.y", "L['x'].y"),
    ):
        miss = parse(f"0/1: {text}")
        assert (miss.guard.source, miss.guard.expected, miss.guard.actual, miss.guard.condition.stage) == (
            source,
            "present",
            "absent",
            "type",
        )


def test_without_counts_the_texts_decide() -> None:
    assert closest([(None, "requires_grad", False), (None, "size", False), (3, "shape", False)]) == 2


def test_stages_are_in_torchs_check_order() -> None:
    order = ("type", "dispatch_key", "dtype", "device", "requires_grad", "rank", "size", "stride", "shape")
    assert sorted(order, key=STAGES.index) == list(order)


def test_reasons_keep_all_entries_and_who_compiled_them() -> None:
    misses = [
        parse("0/1: tensor 'x' requires_grad mismatch. expected requires_grad=1"),
        parse("0/0: tensor 'x' size mismatch at index 1. expected 5, actual 6"),
    ]
    found = ranked(misses, [2, 1], "layers.0", ["layers.1", "layers.0"])
    assert [(r.entry, r.closest, r.failed, r.block) for r in found] == [
        ("0/1", False, 2, "layers.1"),
        ("0/0", True, 1, "layers.0"),
    ]


def test_full_source_undoes_torchs_shortening_and_leaves_the_rest() -> None:
    assert full_source("self._modules['fc'].weight") == "L['self']._modules['fc'].weight"
    assert full_source("G['flag']") == "G['flag']"
    assert full_source("___check_x") == "___check_x"
