"""Graph breaks on a call: Dynamo meets a function that it does not trace."""

from __future__ import annotations

import builtins
import re
import sys

from cftdiag import guards
from cftdiag.diagnose.causes import break_in_region
from cftdiag.diagnose.causes.break_on_value import text
from cftdiag.diagnose.engine import break_types
from cftdiag.diagnose.engine.cause import BREAK, cause
from cftdiag.events import Event
from cftdiag.findings import Remedy

_INPUT_REQUIRES_GRAD = Remedy(
    summary="Make the first block's input require grad (model.enable_input_require_grads(), or x.requires_grad_() "
    "after the embedding): what requires grad already is left alone, and the line is traced.",
    change={"input_requires_grad": True},
    applicability="safe",
)
_HOOK_ON_EMBEDDING = Remedy(
    summary="Register the hook that does it on the embedding, which is not compiled, instead of on a module inside the block."
)
_BETWEEN_BLOCKS = Remedy(
    summary="Where a tensor is detached on purpose to start a new graph: do that between the compiled blocks."
)
#: Of ``requires_grad_in_graph`` where no hook does it: the tensor is more often one that the forward has just made.
BY_FORWARD = (_BETWEEN_BLOCKS, _INPUT_REQUIRES_GRAD)

CAUSES = (
    cause(
        "logging_call",
        says="`{code}` logs from inside the compiled block.",
        kinds=BREAK,
        remedies=(
            Remedy(
                summary="Let Dynamo skip the call: torch._dynamo.config.ignore_logging_functions.add({logging_function}).",
                change={"torch._dynamo.config.ignore_logging_functions": "{logging_function}"},
                applicability="safe",
            ),
            Remedy(
                summary="Move the message out of forward: emit it when the module is built or the configuration is read."
            ),
            Remedy(
                summary="Keep the message but print it after the graph: "
                "torch._dynamo.config.reorderable_logging_functions.add({reordered_function}).",
                change={"torch._dynamo.config.reorderable_logging_functions": "{reordered_function}"},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "print_call",
        says="`{code}` prints from inside the compiled block.",
        kinds=BREAK,
        remedies=(
            Remedy(summary="Remove the print, or print what the block returns outside of it."),
            Remedy(
                summary="Let torch print after the graph: torch._dynamo.config.reorderable_logging_functions.add({printer}).",
                change={"torch._dynamo.config.reorderable_logging_functions": "builtins.{printer}"},
                applicability="safe",
            ),
            Remedy(
                summary="Drop prints while compiled: torch._dynamo.config.ignore_logging_functions.add({printer}).",
                change={"torch._dynamo.config.ignore_logging_functions": "builtins.{printer}"},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "disabled_function",
        says="`{code}` calls {function}, which is disabled for compilation{reason}.",
        kinds=BREAK,
        remedies=(
            Remedy(summary="Remove torch.compiler.disable from {function} if Dynamo can trace it by now."),
            Remedy(
                summary="Where {function} takes and returns tensors only: make it a custom op "
                "(torch.library.custom_op, register_fake), so that it stays in the graph."
            ),
            Remedy(
                summary="Where it is the first or the last thing that the block does: call {function} outside of the block."
            ),
        ),
    ),
    cause(
        "ffi_call",
        says="`{code}` calls foreign code{callee} that Dynamo cannot look into.",
        kinds=BREAK,
        remedies=(
            Remedy(
                summary="Call it outside the compiled block and pass the result in, where it does not depend on what the block computes."
            ),
            Remedy(
                summary="Where it takes and returns tensors only: wrap it as a custom op (torch.library.custom_op, register_fake, register_autograd)."
            ),
        ),
    ),
    cause(
        "rng_seed_call",
        says="`{code}` reads or sets the random state inside the compiled block.",
        kinds=BREAK,
        remedies=(
            Remedy(summary="Seed or restore the state outside the compiled block."),
            Remedy(
                summary="For the same mask in forward and backward use torch.utils.checkpoint(preserve_rng_state=True)."
            ),
        ),
    ),
    cause(
        "requires_grad_in_graph",
        says="`{code}` changes requires_grad inside the compiled block; Dynamo does not trace that.",
        kinds=BREAK,
        remedies=(_INPUT_REQUIRES_GRAD, _HOOK_ON_EMBEDDING, _BETWEEN_BLOCKS),
    ),
    cause(
        "unsupported_call",
        says="`{code}` calls {callee_name}, which Dynamo does not trace.",
        kinds=BREAK,
        remedies=(
            Remedy(summary="Move the call out of the compiled block."),
            Remedy(
                summary="If it has no effect on the result, guard it: if not torch.compiler.is_compiling(): ..."
            ),
        ),
    ),
    cause(
        "generic_break",
        says="`{code}` breaks the graph: {said}",
        kinds=BREAK,
        remedies=(Remedy(summary="{hint}"),),
    ),
)

_SEED = re.compile(
    r"qualname: (?:\w+\.)?(?:manual_seed\w*|seed\w*|initial_seed|[gs]et_rng_state\w*|fork_rng|[gs]etstate)\b|fork_rng|torch\.(?:_C\.)?Generator"
)
_LOGGING = re.compile(
    r"LoggingLoggerVariable|<Logger |module: logging\b|module: _?warnings\b|`logging\.|builtin (?:logging|warnings)"
)
#: A method that writes nothing and whose answer is used (isEnabledFor): to leave it out is to change the program.
_ASKS_LOGGER = re.compile(
    r"method: <Logger [^>]*>\.(?!(?:debug|info|warning|warn|error|critical|fatal|exception|log)\b)\w"
)
_PRINT = re.compile(
    r"builtin print\b|`print`|call_method \w+\(TextIOWrapper\) (?:write|flush)|sys\.std(?:out|err)"
)
#: What a call that seeds may look like to torch: skipped, entered as a context manager, or without a tensor result.
_MAY_SEED = ("skipped_call", "tensor_call", "context_manager", "opaque_object", "torch_internal")
_FOREIGN = re.compile(r"_FuncPtr|_CFuncPtr|_cffi|CompiledFFI|pybind11|PyCapsule|CPUDispatcher|CUDADispatcher")


def classify(event: Event) -> str:
    """The cause of a break on a call; ``generic_break`` when it is none of the known kinds."""
    said = text(event)
    mechanism = break_types.of(event.broke.gb_type)
    name = mechanism.name if mechanism is not None else None
    if _ASKS_LOGGER.search(said):
        return "unsupported_call"
    if (
        name == "logger"
        or _LOGGING.search(said)
        or any(re.search(r"/(logging/__init__|warnings)\.py$", f.file or "") for f in event.stack[-2:])
    ):
        return "logging_call"
    if _PRINT.search(said):
        return "print_call"
    seeds = _SEED.search(said) or any((f.file or "").endswith("/torch/random.py") for f in event.stack[-1:])
    if name in _MAY_SEED and seeds:
        return "rng_seed_call"
    if break_in_region.disabled(event):
        return "disabled_function"
    if _FOREIGN.search(said) or (name == "skipped_call" and _is_extension(said)):
        return "ffi_call"
    return mechanism.cause if mechanism is not None else "generic_break"


_BUILTIN_TYPES = frozenset(dir(builtins)) | {
    "TensorBase",
    "_TensorBase",
    "Random",
    "Generator",
    "Event",
    "Stream",
}
_NOT_FOREIGN = frozenset(sys.stdlib_module_names) | {"torch", "builtins"}


def _is_extension(said: str) -> bool:
    """A skipped function without Python source, of a module outside the standard library and torch."""
    if "likely a C extension or builtin" not in said and "C/C++ Python extension" not in said:
        return False
    found = re.search(r"module: (<unknown module>|\S+?), qualname: (\w+)", said)
    if found is None:
        return False
    root = found[1].split(".")[0]
    # A method of a builtin or of torch's own classes has no module.
    known = found[2] in _BUILTIN_TYPES if root.startswith("<") else root in _NOT_FOREIGN
    return not known


def callee(event: Event) -> str | None:
    """``time.time`` of a skipped function, ``open`` of a builtin, ``side`` of a disabled function; None where
    torch does not say.
    """
    said = event.broke.context or ""
    if found := re.search(r"when calling `([^`]+)`", (event.broke.explanation or "")):
        return guards.pretty(guards.local_names(found[1]))
    if found := re.search(r"module: (\S+?), qualname: (\S+?),", said):
        name = found[2].removeprefix("_VariableFunctionsClass.")
        return name if found[1].startswith("<") else f"{found[1]}.{name}"
    if found := re.search(r"method: <Logger [^>]*>\.(\w+)", said):
        return f"logging.Logger.{found[1]}"
    if found := re.search(r"<(?:bound method|function|built-in function) ([\w.<>]+)", said):
        return found[1].replace("<locals>.", "")
    if found := re.search(r"<built-in method (\w+) of type object", said):
        return f"torch.{found[1]}"
    if found := re.search(r"^builtin (\w+)", said):
        return found[1]
    if found := re.search(
        r"call_method \w+\(<class '([\w.]+)'>\) (\w+)(?: \[\w+\(<class '([\w.]+)'>)?", said
    ):
        # a class that is called: its base's __new__ is given the class itself
        return (found[3] or found[1]) if found[2] == "__new__" else f"{found[1]}.{found[2]}"
    if found := re.search(r"call_method \w+\((\w*)\) (\w+)", said):
        return ".".join(p for p in found.groups() if p)
    return None


def printer(event: Event) -> str | None:
    """``print`` where that is what is called: torch can leave it out or reorder it, a write to sys.stdout not."""
    return "print" if re.search(r"builtin print\b|`print`", text(event)) else None


def logging_function(event: Event) -> str | None:
    """Dotted name of the logging function to ignore: ``logging.Logger.warning``, ``warnings.warn``; None
    where torch does not say.
    """
    said = text(event)
    if found := re.search(r"method: <Logger [^>]*>\.(\w+)", said):
        return f"logging.Logger.{found[1]}"
    return reordered_function(event)


def reordered_function(event: Event) -> str | None:
    """That function where torch can call it after the graph: it can leave out a Logger's method, not move it."""
    return "warnings.warn" if re.search(r"module: _?warnings, qualname: (\w+)", text(event)) else None
