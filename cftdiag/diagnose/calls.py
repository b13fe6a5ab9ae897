"""Graph breaks on a call: Dynamo meets a function that it does not trace."""

from __future__ import annotations

import re
import sys

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.diagnose.scalars import text
from cftdiag.events import Event
from cftdiag.findings import Remedy

CAUSES = (
    Cause(
        key="logging_call",
        kinds=("graph_break",),
        title="A logging or warning call inside the block",
        what="A `logging.Logger` method or `warnings.warn` is called in compiled code. It has side effects that a graph cannot hold.",
        why="The graph ends at every such call, also when the message is shown only once; fullgraph=True refuses it.",
        says="`{code}` logs from inside the compiled block.",
        fix="Warn once at construction time, or tell Dynamo to ignore that function.\n\n"
        "```python\ntorch._dynamo.config.ignore_logging_functions.add(warn_once)   # dropped while compiled\n```",
        references=(ref.COMMON_BREAKS, ref.gb("0291"), ref.issue("huggingface/trl", 3839)),
        remedies=(
            Remedy(
                summary="Let Dynamo skip the call: torch._dynamo.config.ignore_logging_functions.add({logging_function}).",
                change={"torch._dynamo.config.ignore_logging_functions": "{logging_function}"},
            ),
            Remedy(summary="Move the message out of forward: emit it when the module is built or the configuration is read."),
            Remedy(
                summary="Keep the message but print it after the graph: torch._dynamo.config.reorderable_logging_functions.add({logging_function}).",
                change={"torch._dynamo.config.reorderable_logging_functions": "{logging_function}"},
            ),
        ),
        example=example("logging_call"),
    ),
    Cause(
        key="print_call",
        kinds=("graph_break",),
        title="A print inside the block",
        what="`print` or a write to a stream is called in compiled code.",
        why="The graph ends there and starts anew behind it; fullgraph=True refuses it.",
        says="`{code}` prints from inside the compiled block.",
        fix="Remove it, print outside the block, or let torch reorder it.\n\n```python\ntorch._dynamo.config.reorderable_logging_functions.add(print)\n```",
        references=(ref.COMMON_BREAKS, ref.gb("0059")),
        remedies=(
            Remedy(summary="Remove the print, or print what the block returns outside of it."),
            Remedy(
                summary="Let torch print after the graph: torch._dynamo.config.reorderable_logging_functions.add(print).",
                change={"torch._dynamo.config.reorderable_logging_functions": "builtins.print"},
            ),
            Remedy(
                summary="Drop prints while compiled: torch._dynamo.config.ignore_logging_functions.add(print).",
                change={"torch._dynamo.config.ignore_logging_functions": "builtins.print"},
            ),
        ),
        example=example("print_call"),
    ),
    Cause(
        key="disabled_function",
        kinds=("graph_break",),
        title="A function is disabled for compilation",
        what="The block calls a function wrapped in `torch.compiler.disable` (or `torch._dynamo.disable`): Dynamo must run it in eager Python.",
        why="The graph is split around every call; fullgraph=True refuses it.",
        says="`{code}` calls {function}, which is disabled for compilation{reason}.",
        fix="Remove the decorator when the function is traceable, register it as a custom op, or call it outside the block.\n\n"
        '```python\n@torch.library.custom_op("mine::side", mutates_args=())\ndef side(x: torch.Tensor) -> torch.Tensor: ...\n```',
        references=(ref.DISABLE, ref.gb("0098"), ref.CUSTOM_OPS),
        remedies=(
            Remedy(summary="Remove torch.compiler.disable from {function} if Dynamo can trace it by now."),
            Remedy(summary="Register {function} as a custom op with a fake implementation, so that it stays in the graph."),
            Remedy(summary="Call {function} before or after the compiled block."),
        ),
        example=example("disabled_function"),
    ),
    Cause(
        key="ffi_call",
        kinds=("graph_break",),
        title="A call into foreign code",
        what="The block calls a C extension, ctypes, cffi, pybind11 or Numba function. Dynamo sees only its Python name.",
        why="The graph ends at each call; the values it needs must be real, so it also waits for the device.",
        says="`{code}` calls foreign code{callee} that Dynamo cannot look into.",
        fix="Wrap it as a custom op with a fake implementation.\n\n"
        '```python\n@torch.library.custom_op("mine::kernel", mutates_args=())\ndef kernel(x: torch.Tensor) -> torch.Tensor:\n    return extension.kernel(x)\n\n'
        "@kernel.register_fake\ndef _(x):\n    return torch.empty_like(x)\n```",
        references=(ref.CUSTOM_OPS, ref.gb("0007"), ref.gb("0156")),
        remedies=(
            Remedy(summary="Wrap the call as a custom op (torch.library.custom_op, register_fake, register_autograd)."),
            Remedy(summary="Compute it outside the compiled block when it does not depend on the block's input."),
        ),
        example=example("ffi_call"),
    ),
    Cause(
        key="rng_seed_call",
        kinds=("graph_break",),
        title="The random state is set inside the block",
        what="`manual_seed`, `set_rng_state`, `fork_rng` or a `Generator` method is called in compiled code.",
        why="Random state is global and lives outside the graph; the graph ends there.",
        says="`{code}` changes the random state inside the compiled block.",
        fix="Seed once before the step. For reproducible recomputation use torch.utils.checkpoint, which keeps the state.\n\n"
        "```python\ntorch.manual_seed(seed)          # in the training loop\nloss = model(**batch)\n```",
        references=(ref.COMMON_BREAKS, ref.gb("0007"), ref.gb("7650")),
        remedies=(
            Remedy(summary="Seed or restore the state outside the compiled block."),
            Remedy(summary="For the same mask in forward and backward use torch.utils.checkpoint(preserve_rng_state=True)."),
        ),
        example=example("rng_seed_call"),
    ),
    Cause(
        key="unsupported_call",
        kinds=("graph_break",),
        title="A call that Dynamo does not trace",
        what="The block calls a Python builtin, a standard library function or a part of torch that Dynamo skips (`time.time`, `gc.collect`, `open`, `copy.deepcopy` of a tensor).",
        why="The graph ends there and starts anew behind it; fullgraph=True refuses it.",
        says="`{code}` calls {callee_name}, which Dynamo does not trace.",
        fix="Move the call out of the block.\n\n```python\nstart = time.perf_counter()      # around the block, not in it\nx = block(x)\n```",
        references=(ref.COMMON_BREAKS, ref.gb("0007"), ref.gb("0059")),
        remedies=(
            Remedy(summary="Move the call out of the compiled block."),
            Remedy(summary="If it has no effect on the result, guard it: if not torch.compiler.is_compiling(): ..."),
        ),
        example=example("unsupported_call"),
    ),
    Cause(
        key="generic_break",
        kinds=("graph_break",),
        title="A graph break of another kind",
        what="Dynamo met something that it cannot trace and that has no page of its own here. The finding carries torch's own reason, id and hints.",
        why="Every break starts a new graph; fullgraph=True refuses most of them.",
        says="`{code}`: {gb_type}.",
        fix="Follow torch's hint in the finding's evidence, or torch's page of that id.\n\n```python\nblock.compile(fullgraph=True)    # shows the full message\n```",
        references=(ref.BREAKS, ref.COMMON_BREAKS),
        remedies=(Remedy(summary="{hint}"), Remedy(summary="Move the construct out of the compiled block.")),
        example=example("generic_break"),
    ),
)

_SEED = re.compile(
    r"qualname: (?:\w+\.)?(?:manual_seed\w*|seed\w*|initial_seed|[gs]et_rng_state\w*|fork_rng|[gs]etstate)\b|fork_rng|torch\.Generator|torch\._C\.Generator"
)
_LOGGING = re.compile(r"LoggingLoggerVariable|<Logger |module: logging\b|module: _?warnings\b|`logging\.|builtin (?:logging|warnings)")
_PRINT = re.compile(r"builtin print\b|`print`|TextIOWrapper|sys\.std(?:out|err)")
_FOREIGN = re.compile(r"_FuncPtr|_CFuncPtr|_cffi|CompiledFFI|pybind11|PyCapsule|CPUDispatcher|CUDADispatcher")
_SKIPPED = ("GB0007", "GB0008", "GB0009")
_UNSUPPORTED = (*_SKIPPED, "GB0059", "GB0147", "GB0148", "GB0156", "GB0193", "GB0197", "GB4198", "GB0123", "GB0213")


def classify(event: Event) -> str:
    """The cause of a break on a call; ``generic_break`` when it is none of the known kinds."""
    gb, said = event.detail.get("gb_id"), text(event)
    if gb == "GB0291" or _LOGGING.search(said) or any(re.search(r"/(logging/__init__|warnings)\.py$", f.file or "") for f in event.stack[-2:]):
        return "logging_call"
    if _PRINT.search(said):
        return "print_call"
    if gb == "GB7650" or (gb in (*_SKIPPED, "GB0208", "GB0363", "GB0142", "GB0055") and _SEED.search(said)):
        return "rng_seed_call"
    if gb in ("GB0098", "GB0099"):
        return "disabled_function"
    if _FOREIGN.search(said) or (gb in _SKIPPED and _is_extension(said)):
        return "ffi_call"
    return "unsupported_call" if gb in _UNSUPPORTED else "generic_break"


def _is_extension(said: str) -> bool:
    """A skipped function without Python source, of a module outside the standard library and torch."""
    if "likely a C extension or builtin" not in said and "C/C++ Python extension" not in said:
        return False
    found = re.search(r"module: (\S+?),", said)
    root = found[1].split(".")[0] if found else ""
    return root not in sys.stdlib_module_names and root not in ("torch", "builtins")


def callee(event: Event) -> str | None:
    """``time.time`` of a skipped function, ``open`` of a builtin, ``side`` of a disabled function; None where torch does not say."""
    said = str(event.detail.get("context") or "")
    if found := re.search(r"module: (\S+?), qualname: (\S+?),", said):
        return found[2] if found[1].startswith("<") else f"{found[1]}.{found[2]}"
    if found := re.search(r"<(?:bound method|function|built-in function) ([\w.<>]+)", said):
        return found[1].replace("<locals>.", "")
    if found := re.search(r"^builtin (\w+)", said):
        return found[1]
    if found := re.search(r"call_method \w+\((\w*)\) (\w+)", said):
        return ".".join(p for p in found.groups() if p)
    return None


def logging_function(event: Event) -> str | None:
    """Dotted name of the logging function to ignore: ``logging.Logger.warning``, ``warnings.warn``; None where torch does not say."""
    said = text(event)
    if found := re.search(r"method: <Logger [^>]*>\.(\w+)", said):
        return f"logging.Logger.{found[1]}"
    if re.search(r"module: _?warnings, qualname: (\w+)", said):
        return "warnings.warn"
    return None
