"""What is kept of an exception's text. The remedies are torch's own words, of the files named beside them."""

from __future__ import annotations

import pytest

from cftdiag.details import ErrorDetail
from cftdiag.diagnose import Block, Context, diagnose
from cftdiag.error_text import one_line, remedies, shorten
from cftdiag.events import Event
from cftdiag.findings import Finding

# torch/_functorch/_aot_autograd/runtime_wrappers.py
DONATED_BUFFER = (
    "Please keep backward(create_graph=False, retain_graph=False) across all backward() function calls, or "
    "set torch._functorch.config.donated_buffer=False to disable donated buffer."
)
DONATED = (
    "This backward function was compiled with non-empty donated buffers which requires create_graph=False "
    "and retain_graph=False. " + DONATED_BUFFER
)
# torch/_dynamo/output_graph.py
EVENT_FIX = """To fix this, either:
  1. Move the input mutation after the event.record() call.
  2. Record the event outside the compiled region:
       compiled_fn(x)
       event.record(stream)  # after torch.compile returns
  3. Insert a graph break before recording:
       torch._dynamo.graph_break()
       event.record(stream)
  4. Record the event on a stream that has no input mutations."""
# torch/utils/checkpoint.py
RECOMPUTED_FIX = """To fix this, either:
  - Use torch._dynamo.mark_dynamic() to explicitly mark varying dimensions as
    dynamic upfront, avoiding the static-to-dynamic transition.
  - Call torch._C._dynamo.eval_frame._set_lru_cache(False) to disable LRU cache
    reordering, which can change which graph is checked first between forward
    and recompute.
See https://github.com/pytorch/pytorch/issues/166926 for more details and
workaround examples."""
# torch/fx/experimental/symbolic_shapes.py
GUARDED = 'For more information, run with TORCH_LOGS="dynamic"'
FRIENDLY = (
    "consider using data-dependent friendly APIs such as guard_or_false, guard_or_true and "
    "statically_known_true."
)
# torch/_dynamo/convert_frame.py
LIMIT = (
    "If recompilations are expected, consider increasing torch._dynamo.config.recompile_limit to an "
    "appropriate value."
)
# torch/_dynamo/exc.py
REPORTING = (
    "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a "
    'bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"'
)
LONG = "The operator met a tensor that it cannot take. " * 20

TEXTS = {
    "setting": (LONG + DONATED, DONATED_BUFFER),
    "setting in a sentence of its own": (f"{LONG}{LIMIT}", LIMIT),
    "list": (f"{LONG}\n\n{EVENT_FIX}\n\n{LONG}", EVENT_FIX),
    "bullets": (f"{LONG}\n{RECOMPUTED_FIX}\n", RECOMPUTED_FIX),
    "log": (f"Could not guard on expression {LONG}\n{GUARDED}\n{LONG}", GUARDED),
    "advice": (f"Could not guard on expression {LONG}\n\n{FRIENDLY}\nCaused by: {LONG}", FRIENDLY),
}


@pytest.mark.parametrize("limit", [40, 300, 500])
@pytest.mark.parametrize("text, remedy", TEXTS.values(), ids=TEXTS)
def test_a_remedy_beyond_the_limit_is_kept_whole(text: str, remedy: str, limit: int) -> None:
    short = shorten(text, limit)
    head, ellipsis, rest = short.partition("...")
    assert ellipsis and text.startswith(head) and len(head) <= limit
    assert remedy in rest
    assert LONG not in rest


@pytest.mark.parametrize("text, remedy", TEXTS.values(), ids=TEXTS)
def test_on_one_line_as_well(text: str, remedy: str) -> None:
    said = one_line(RuntimeError(text), 60)
    assert said.startswith("RuntimeError: ") and "\n" not in said
    assert " ".join(remedy.split()) in said


def test_a_remedy_across_the_limit_is_neither_cut_nor_begun_twice() -> None:
    for limit in (130, 200, len(DONATED) - 1):
        assert shorten(DONATED, limit).endswith(f"... {DONATED_BUFFER}")
        assert shorten(DONATED, limit).count("Please keep") == 1


def test_a_remedy_within_the_limit_is_not_said_twice() -> None:
    assert shorten(DONATED + " " + LONG, 320).count("donated_buffer=False") == 1
    assert shorten(f"{LIMIT} {LONG}{LIMIT}", 300).count(LIMIT) == 1


def test_a_text_without_a_remedy_is_cut_at_the_limit_and_a_short_one_is_left_alone() -> None:
    assert shorten("x" * 50, 20) == "x" * 17 + "..."
    assert shorten(DONATED, len(DONATED)) == DONATED
    assert len(shorten(f"{LONG}\n{REPORTING}\n", 100)) <= 100  # how to report a bug of torch is no remedy


def test_one_line_names_the_type_where_the_text_needs_it() -> None:
    assert one_line(ValueError("a\n b")) == "ValueError: a b"
    assert one_line(ValueError("a\n b"), typed=False) == "a b"
    assert one_line(KeyError("a"), typed=False) == "KeyError: 'a'"
    assert one_line(ValueError(), typed=False) == one_line(ValueError()) == "ValueError"


def finding(message: str, kind: str = "RuntimeError") -> Finding:
    detail = ErrorDetail(type=kind, message=message, phase="backward")
    blocks = (Block(fqn="layers.0", cls="Block", kind="a", index=0),)
    [found] = diagnose([Event(kind="error", time=0.0, step=1, detail=detail)], Context(blocks=blocks))
    return found


def test_the_finding_of_an_error_of_no_known_kind_says_torchs_remedy() -> None:
    found = finding(f"backend='inductor' raised: {LONG}\nmore words\n{EVENT_FIX}\n", "BackendCompilerFailed")
    [remedy] = remedies(EVENT_FIX)
    assert found.cause == "fullgraph_error"
    assert found.explanation.endswith(remedy)
    assert remedy in found.evidence and "more words" in found.evidence


def test_torchs_remedy_is_evidence_of_every_error() -> None:
    found = finding(f"{DONATED} {LONG}")
    assert found.cause == "donated_buffer"
    assert any(DONATED_BUFFER in line for line in found.evidence)
    lines = "\n".join(f"tensor at position {i}:" for i in range(30))
    found = finding(f"torch.utils.checkpoint: Recomputed values differ.\n{lines}\n{RECOMPUTED_FIX}")
    assert found.cause == "ac_recompute_other_graph"
    assert remedies(RECOMPUTED_FIX)[0] in found.evidence


def test_a_first_line_that_announces_the_next_is_told_with_it() -> None:
    from cftdiag.diagnose.causes.errors import told

    text = "backend='inductor' raised:\nNotImplementedError: no kernel for that\n\nSet TORCHDYNAMO_VERBOSE=1"
    assert told(text)[0] == "backend='inductor' raised: NotImplementedError: no kernel for that"
    assert told("plain\nsecond")[0] == "plain"
    assert told("") == ("", None)
