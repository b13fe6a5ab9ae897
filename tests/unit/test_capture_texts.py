"""Break texts, exceptions, names: pure string work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cftdiag.capture.capture_ends import Reported
from cftdiag.capture.record import Record
from cftdiag.capture.torch_texts import break_stack, exception, is_break, message, parse_break
from cftdiag.events import Frame
from cftdiag.torch_private.wrappers import strip

BREAK = """Graph break in user code at /u/b.py:14
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Skip calling `torch.compiler.disable()`d function
  Higher Order Operator: torch.utils.checkpoint.checkpoint
  Explanation: Skip calling function `<function side>` since it was wrapped
    with `torch.compiler.disable`
  Hint: Remove the call.
  Hint: Or the other thing.

  Developer debug context: <function side>

 For more details about this graph break, please visit: https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0098.html

User code traceback:
  File "/u/train.py", line 3, in <module>
    model(x)
  File "/env/torch/nn/modules/module.py", line 1789, in _call_impl
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/u/b.py", line 14, in inner
    side(x)
    ^^^^^^^

Traceback (most recent call last):
  File "/env/torch/_dynamo/symbolic_convert.py", line 1076, in wrapper
    return inner_fn(self, inst)
torch._dynamo.exc.Unsupported: Skip calling
"""


def test_all_parts_of_a_break_are_read() -> None:
    said = parse_break(BREAK)
    assert said.gb_type == "Skip calling `torch.compiler.disable()`d function"
    assert said.gb_id == "GB0098"
    assert (
        said.explanation
        == "Skip calling function `<function side>` since it was wrapped with `torch.compiler.disable`"
    )
    assert said.hints == ("Remove the call.", "Or the other thing.")
    assert said.context == "<function side>"
    assert said.operator == "torch.utils.checkpoint.checkpoint"


def test_the_stack_is_the_users_without_plumbing_and_without_torchs_own() -> None:
    assert [(f.file, f.line, f.code) for f in break_stack(BREAK)] == [
        ("/u/train.py", 3, "model(x)"),
        ("/u/b.py", 14, "side(x)"),
    ]


def test_an_innermost_frame_in_torch_is_kept() -> None:
    text = 'from user code:\n   File "/u/b.py", line 1, in f\n    x\n  File "/env/torch/nn/modules/module.py", line 9, in inner\n    hook()\n'
    assert break_stack(text)[-1].function == "inner"


def test_a_plain_exception_is_its_own_reason() -> None:
    said = parse_break(
        "Could not guard on data-dependent expression Eq(u0, 1)\n\nfrom user code:\n   File ..."
    )
    assert not said.structured
    assert said.reason == "Could not guard on data-dependent expression Eq(u0, 1)"
    assert said.gb_id is None


def test_message_leaves_stacks_and_advice_out() -> None:
    assert message("It failed\n\nfrom user code:\n  File x\nSet TORCHDYNAMO_VERBOSE=1").strip() == "It failed"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Unsupported", "", True),
        ("UserError", "", True),
        ("GuardOnDataDependentSymNode", "", True),
        ("TorchRuntimeError", "Could not guard on data-dependent expression", True),
        ("TorchRuntimeError", "shapes do not match", False),
        ("BackendCompilerFailed", "data-dependent", False),
        ("ConstraintViolationError", "", False),
    ],
)
def test_what_counts_as_a_break(name: str, text: str, expected: bool) -> None:
    assert is_break(name, text) is expected


def test_the_last_exception_of_a_chain_is_the_one() -> None:
    first = "Traceback (most recent call last):\n  File x\nKeyError: 1\n\nThe above exception was the direct cause:\n\n"
    chain = (
        first
        + "Traceback (most recent call last):\n  File y\ntorch._dynamo.exc.Unsupported: No\n  Explanation: why"
    )
    assert exception(chain) == ("Unsupported", "No\n  Explanation: why")


@pytest.mark.parametrize(
    ("fqn", "stripped"),
    [
        ("model.layers.0._checkpoint_wrapped_module._orig_mod.mlp", "model.layers.0.mlp"),
        ("_orig_mod.layers.3", "layers.3"),
        ("layers.1._fsdp_wrapped_module", "layers.1"),
        ("", ""),
    ],
)
def test_wrappers_are_stripped_from_names(fqn: str, stripped: str) -> None:
    assert strip(fqn) == stripped


def test_a_break_is_told_again_only_for_a_later_compile_of_the_same_frame() -> None:
    reported = Reported()
    stack = (Frame(file="b.py", line=3),)
    assert reported.first("0/0", "t", stack, "layers.0")
    assert not reported.first("0/0", "t", stack, "layers.0"), "a restart of the same compile"
    assert not reported.first("1/0", "t", stack, "layers.0"), "the helper's own frame"
    assert reported.first("0/1", "t", stack, "layers.0"), "a recompile of the frame"
    assert not reported.first("1/1", "t", stack, "layers.0")
    assert reported.first("0/2", "t", stack, "layers.1"), "another block"
    assert reported.first("0/2", "u", stack, "layers.0"), "another type"
    assert reported.first("0/2", "t", (Frame(file="b.py", line=4),), "layers.0"), "another line"


def test_compile_ids() -> None:
    def of(**metadata: object) -> str | None:
        return Record.of({"dynamo_start": {}, **metadata}, None, 0.0).compile_id

    assert of(frame_id=0, frame_compile_id=3, attempt=1) == "0/3"
    assert of(frame_id=0, frame_compile_id=3, compiled_autograd_id=2) == "!2/0/3"
    assert of(compiled_autograd_id=2) == "!2"
    assert of() is None


def test_the_package_imports_without_torch() -> None:
    code = "import sys, cftdiag.capture, cftdiag.capture.trace, cftdiag.self_test; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500)
    code = "from cftdiag.capture import Recorder, counting, track"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500)


def test_what_a_branch_comes_from_is_kept_where_python_drew_it() -> None:
    """torch 2.15 tells it behind the explanation."""
    text = """Data-dependent branching
  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`). Dynamo does not support tracing dynamic control flow.

      The branch condition involves a tensor computed as follows:
        # File "/tmp/a.py", line 4, in f, code: if random.random() < 0.5:
        random_value_0: graph input (random_value_0)

  Hint: Use `torch.cond` to express dynamic control flow.

  Developer debug context: attempted to jump with TensorVariable()
"""
    found = parse_break(text)
    assert found.context == "attempted to jump with TensorVariable() random_value_0: graph input"
    assert (
        parse_break(text.replace("random_value_0", "l_x_")).context
        == "attempted to jump with TensorVariable()"
    )
