"""Graph breaks on a value: Python needs to know a number, a length or a random draw that only exists when the
graph runs.
"""

from __future__ import annotations

import ast
import re

from cftdiag.diagnose.engine import break_types
from cftdiag.diagnose.engine.cause import BREAK, cause
from cftdiag.events import Event
from cftdiag.findings import Remedy

_SCALARS = {"torch._dynamo.config.capture_scalar_outputs": True}
_SHAPES = {"torch._dynamo.config.capture_dynamic_output_shape_ops": True}

ASSERTION_SAYS = (
    "`{code}` has a message that is not a constant text, so Dynamo does not make a check in the graph of it."
)
ASSERTION = (
    Remedy(summary="Give the assertion a constant message: torch then compiles it as a check in the graph."),
    Remedy(summary="Assert on the batch before the compiled block is called."),
)

CAUSES = (
    cause(
        "tensor.item",
        says="`{code}` reads a tensor's value as a Python number; the graph ends there.",
        kinds=BREAK,
        captured_by_fullgraph=True,
        remedies=(
            Remedy(
                summary="Let torch capture scalars: torch._dynamo.config.capture_scalar_outputs = True (fullgraph=True implies it).",
                change=_SCALARS,
                applicability="safe",
            ),
            Remedy(summary="Keep it a 0-d tensor and compute with that."),
            Remedy(
                summary="Compute the number once outside the blocks and pass it as an argument, with dynamic=True: "
                "else the first other number is compiled again."
            ),
            Remedy(
                summary="Compile with fullgraph=True, which captures this read.",
                change={"compile_kwargs": {"fullgraph": True}},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "tensor.tolist",
        says="`{code}` moves tensor values into a Python list; what follows depends on them.",
        kinds=BREAK,
        captured_by_fullgraph=True,
        remedies=(
            Remedy(
                summary="Let torch capture scalars and data-dependent shapes; enough only when no Python code needs the numbers.",
                change={**_SCALARS, **_SHAPES},
                applicability="safe",
            ),
            Remedy(
                summary="Keep the values on the device: grouped matmul with offsets, or dense routing with a mask."
            ),
            Remedy(
                summary="Compile the sub-modules before and after the loop instead of the whole block (a module of torch.nn by "
                "torch.compile(module): module.compile() leaves it eager)."
            ),
        ),
    ),
    cause(
        "data_dependent_branch",
        says="`{code}` decides a Python branch by tensor values.{branch}",
        kinds=BREAK,
        remedies=(
            Remedy(
                summary="Where it depends on the batch alone (mask, lengths, positions): decide it once per batch outside the compiled "
                "block and pass the outcome as an argument (None or a tensor, a bool), which makes two variants."
            ),
            Remedy(
                summary="Where it depends on activations: make it branchless: torch.where, torch.clamp, torch.nan_to_num, or torch.cond."
            ),
            Remedy(
                summary="Another attention: sdpa does not ask whether the batch is packed.",
                change={"attn": "sdpa"},
                applicability="changes_numbers",
            ),
            Remedy(
                summary="Pass the varlen arguments (cu_seq_lens_q/k, max_length_q/k) so that the packed-sequence test is not reached.",
                change={"flash_varlen": True},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "dynamic_output_shape",
        says="`{code}` has an output whose size depends on tensor values.",
        kinds=BREAK,
        captured_by_fullgraph=True,
        remedies=(
            Remedy(
                summary="Let torch capture them: capture_dynamic_output_shape_ops and capture_scalar_outputs.",
                change={**_SHAPES, **_SCALARS},
                applicability="safe",
            ),
            Remedy(
                summary="Compute densely with a mask or with a grouped matmul, so that sizes do not depend on values."
            ),
            Remedy(
                summary="Compile with fullgraph=True, which captures them.",
                change={"compile_kwargs": {"fullgraph": True}},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "python_rng_branch",
        says="`{code}` draws a random number in Python.",
        kinds=BREAK,
        remedies=(
            Remedy(
                summary="Draw outside the compiled block (which layers to skip) and call only the blocks that are kept."
            ),
            Remedy(summary="Draw with torch.rand and multiply by the outcome instead of branching."),
        ),
    ),
)

_BRANCH_TEXT = re.compile(r"guard on data-dependent expression", re.I)
_NEEDED_TEXT = re.compile(r"data-dependent|specialized integer", re.I)
#: Dynamo's own input for a number of Python's generator is ``random_value_N`` (2.15 tells what a branch comes from).
_PYTHON_RANDOM = re.compile(
    r"qualname: (?:Random|SystemRandom)\.(?!seed|getstate|setstate)\w+|UnspecializedPythonVariable"
    r"|module: (?:numpy\.random|random)\b(?!.*seed)|\brandom_value_\d+: graph input"
)
#: A backend that fails on such an operator (GB0219) met the same trouble one step later than Dynamo.
_SHAPE_OPERATOR = re.compile(
    r"failed with aten\.(?:nonzero|masked_select|_?unique\w*|bincount|repeat_interleave|index)\b"
)
_KEYS = frozenset(c.key for c in CAUSES)
#: A builtin that needs the number in a tensor.
_BUILTIN_READ = re.compile(
    r"builtin (?:range|int|float|bool|complex|round|chr|bin|hex|slice) \[.*TensorVariable"
)
_BRANCHING = ("aten.equal", "aten.allclose", "aten.is_nonzero")


def classify(event: Event) -> str | None:
    """The cause of a break on a value, or None when it is about something else."""
    said = text(event)
    gb_type = event.broke.gb_type
    mechanism = break_types.of(gb_type)
    name = mechanism.name if mechanism is not None else None
    # Without a type that torch's registry has, the words of the exception (a fullgraph failure) have to do.
    nameless = mechanism is None and event.broke.gb_id is None
    if (nameless or name in ("skipped_call", "branch")) and _PYTHON_RANDOM.search(said):
        return "python_rng_branch"
    if (nameless or name == "scalar_read") and _line(event, r"\b(?:np|numpy)\.random\.\w+\("):
        return "python_rng_branch"
    if name == "skipped_call" and _BUILTIN_READ.search(said):
        return "data_dependent_branch" if decides(event) else "tensor.item"
    if name == "backend" and _SHAPE_OPERATOR.search(said):
        return "dynamic_output_shape"
    if name == "scalar_read":
        if gb_type == "Data dependent operator" and any(op in said for op in _BRANCHING):
            return "data_dependent_branch"
        if _line(event, r"\.tolist\("):
            return "tensor.tolist"
        return "data_dependent_branch" if decides(event) else "tensor.item"
    if mechanism is not None:
        return mechanism.cause if mechanism.cause in _KEYS else None
    if nameless and _NEEDED_TEXT.search(said) and _line(event, r"\.tolist\("):
        return "tensor.tolist"
    if nameless and _BRANCH_TEXT.search(said):
        return "data_dependent_branch"
    if nameless and _NEEDED_TEXT.search(said):
        return "data_dependent_branch" if decides(event) else "tensor.item"
    return None


def decides(event: Event) -> bool:
    """True when the line of the break is a branch whose condition reads the value."""
    code = next((f.code for f in reversed(event.stack) if f.code), None)
    return bool(code) and branches(code or "")


def branches(code: str) -> bool:
    """True when a source line decides something by a value read from a tensor: in the test of ``if``,
    ``while``, ``assert``, ``x if t else y``, ``and``, ``or``, or in the range of a ``for``.
    """
    line = re.sub(r"^(elif|el if)\b", "if", code.strip())
    for attempt in (
        line,
        line + "\n    pass",
        line + " pass",
        line.rstrip(":") + ":\n    pass",
        re.sub(r":[^:]*$", ":\n    pass", line),
    ):
        try:
            tree = ast.parse(attempt)
        except SyntaxError:
            continue
        return any(_reads(test) for node in ast.walk(tree) for test in _tests(node))
    return bool(re.match(r"(if|while|assert)\b", line))


def _tests(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return list(node.values)
    if isinstance(node, ast.For):
        return [node.iter]
    return list(node.ifs) if isinstance(node, ast.comprehension) else []


def _reads(test: ast.expr) -> bool:
    """A call or a comparison in the test: a bare name was read on an earlier line."""
    return any(
        isinstance(node, (ast.Call, ast.Compare, ast.Subscript, ast.Attribute)) for node in ast.walk(test)
    )


def text(event: Event) -> str:
    """Everything that torch said about a break, for matching."""
    detail = event.broke
    return "\n".join(t or "" for t in (detail.gb_type, detail.reason, detail.explanation, detail.context))


def _line(event: Event, pattern: str) -> bool:
    codes = [f.code for f in event.stack[-3:] if f.code] + re.findall(r"Caused by: (.*)", text(event))
    return any(re.search(pattern, code) for code in codes)
