"""What a rehearsed script meets in place of torch's own: compile wrappers, function modes, generators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from cftdiag.torch_private import dynamo
from cftdiag.torch_private.names import Name, by_alias, resolve

_LOST = "a training script cannot be checked without its GPUs (check -- COMMAND)"

_COMM_HOOK = Name(
    "torch.distributed:_register_comm_hook",
    "rehearsal",
    "a script that uses DDP cannot be rehearsed",
    needed=False,
)

_COMPILED_CUDA = "a compiled region that names a CUDA device cannot be rehearsed"

#: Methods of Dynamo's variable of a tensor that answer for its device.
_IS_CUDA, _DEVICE = (
    Name(f"torch._dynamo.variables:TensorVariable.method_attr_{name}", "rehearsal", _COMPILED_CUDA)
    for name in ("is_cuda", "device")
)
_BUILD = Name("torch._dynamo.variables:VariableTracker.build", "rehearsal", _COMPILED_CUDA)
_CREATE_PROXY = Name(
    "torch._dynamo.output_graph:SubgraphTracer.create_proxy",
    "rehearsal",
    _COMPILED_CUDA,
    leading=("self", "kind", "target", "args", "kwargs"),
)
_MODES = Name(
    "torch._dynamo.variables.torch_function:SymbolicTorchFunctionState.__init__",
    "rehearsal",
    _COMPILED_CUDA,
    leading=("self", "py_stack"),
)
_MODE_STACK = Name(
    "torch._dynamo.variables.torch_function:TorchFunctionModeStackVariable", "rehearsal", _COMPILED_CUDA
)

_ENGINE = Name(
    "torch.autograd:_engine_run_backward",
    "rehearsal",
    "what a checkpoint recomputes is taken for a recompile",
    needed=False,
)

_FOREACH = Name(
    "torch.optim.optimizer:_get_foreach_kernels_supported_devices",
    "rehearsal",
    "an optimizer is counted as the loop over parameters that it is on a CPU",
    needed=False,
)

_PLANS_AGREE = Name(
    "torch.distributed.checkpoint.default_planner:_validate_global_plan",
    "rehearsal",
    "a script that saves a sharded checkpoint cannot be rehearsed",
    leading=("global_plan", "metadata"),
    needed=False,
)

_BACKENDS = Name("torch._dynamo.backends.registry:_COMPILER_FNS", "rehearsal", _LOST)
_LOOKUP = Name("torch._dynamo.backends.registry:lookup_backend", "rehearsal", _LOST)

NAMES = (
    Name("torch:_TorchCompileInductorWrapper", "rehearsal", _LOST, alias="CompileByInductor"),
    Name("torch:_TorchCompileWrapper", "rehearsal", _LOST, alias="CompileByName"),
    Name("torch._dynamo.eval_frame:OptimizeContext", "rehearsal", _LOST),
    Name("torch._dynamo:trace_rules", "rehearsal", "why a frame was never compiled is not told"),
    Name(
        "torch._dynamo:trace_rules.check",
        "rehearsal",
        "why a frame was never compiled is not told",
        alias="skips",
    ),
    _BACKENDS,
    _LOOKUP,
    _COMM_HOOK,
    _IS_CUDA,
    _DEVICE,
    _BUILD,
    _CREATE_PROXY,
    _MODES,
    _MODE_STACK,
    _ENGINE,
    _FOREACH,
    _PLANS_AGREE,
    Name("torch:_C.Generator", "rehearsal", _LOST),
    Name("torch.utils._device:DeviceContext", "rehearsal", _LOST),
)
_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)


def hide_mode(mode: type) -> None:
    """Let Dynamo trace, guard and break as if no function mode of this class were on.

    The mode stays on, so that it also holds for what runs between two graphs of a frame.
    """
    real, stack = _MODES.get(), _MODE_STACK.get()

    @functools.wraps(real)
    def initialise(self: Any, py_stack: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        modes = list(py_stack)
        others = [m for m in modes if type(m) is not mode]
        real(self, others, *args, **kwargs)
        # where the others lie on the real stack: above the hidden one, but for a default device, which is lowest
        stack.offset += modes.index(others[0]) if others else 0

    _replace(_MODES, initialise)


def around_backward(context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Have every run of the autograd engine inside of ``context()``.

    A function mode is off while it answers, and ``backward`` is a torch function: without this what a backward runs
    (a checkpoint's recomputation, hooks) does not meet the mode under which its forward ran.
    """
    if _ENGINE.check() is None:
        real = _ENGINE.get()

        @functools.wraps(real)
        def run(*args: Any, **kwargs: Any) -> Any:
            if dynamo.try_get() is not None:
                return real(*args, **kwargs)  # a graph is being made, as for the device itself
            with context():
                return real(*args, **kwargs)

        _replace(_ENGINE, run)


def update_as_on_gpu() -> None:
    """Let optimizers that are not told otherwise update all parameters at once (``foreach``), as they do on a GPU."""
    if _FOREACH.check() is None:
        real = _FOREACH.get()
        _replace(_FOREACH, lambda: [*real(), "cpu"])


def map_graph_arguments(mapped: Callable[[Any, Any, Any], tuple[Any, Any, Any]]) -> None:
    """Have ``mapped(target, args, kwargs)`` decide on each node that Dynamo puts into a graph."""
    real = _CREATE_PROXY.get()

    @functools.wraps(real)
    def create_proxy(
        self: Any, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any
    ) -> Any:
        return real(self, kind, *mapped(target, args, kwargs), *more, **named)

    _replace(_CREATE_PROXY, create_proxy)


def answer_devices(answer: Callable[[Any], Any]) -> None:
    """Have a traced tensor's ``device`` and ``is_cuda`` answered by ``answer(device)``, which returns a device."""
    build = _BUILD.get()

    def device(self: Any, tx: Any) -> Any:
        return None if self.device is None else build(tx, answer(self.device))

    def is_cuda(self: Any, tx: Any) -> Any:
        return None if self.device is None else build(tx, answer(self.device).type == "cuda")

    _replace(_DEVICE, device)
    _replace(_IS_CUDA, is_cuda)


def _replace(name: Name, new: Callable[..., Any]) -> None:
    owner, attribute = name.owner()
    setattr(owner, attribute, new)


def replace_backends(new: Mapping[str, Callable[..., Any]]) -> None:
    """Let these names mean other backends, for whoever looks them up from now on."""
    for name, backend in new.items():
        # torch registers its own at the first look-up, and refuses a name that is taken
        _LOOKUP.get()(name)
        _BACKENDS.get()[name] = backend


def registered(name: str, backend: Callable[..., Any]) -> bool:
    """True where torch knows this backend by this name."""
    return _BACKENDS.get().get(name) is backend


def replace_comm_hook(new: Callable[..., None]) -> Callable[..., None]:
    """Have DDP's reducers given their hook by ``new(reducer, state, hook)``; returns torch's own function."""
    real: Callable[..., None] = _COMM_HOOK.get()
    owner, name = _COMM_HOOK.owner()
    setattr(owner, name, new)
    return real


def trust_checkpoint_plans() -> None:
    """Let a sharded checkpoint be planned whose shards, all of them this rank's, do not make up the whole."""
    if _PLANS_AGREE.check() is None:
        real = _PLANS_AGREE.get()

        @functools.wraps(real)
        def validate(global_plan: Any, metadata: Any) -> Any:
            # newer releases return the errors, older ones whether there are none
            return True if isinstance(real(global_plan, metadata), bool) else []

        _replace(_PLANS_AGREE, validate)


def answer_raw_streams() -> None:
    """Have packages of kernels find, as they are imported, what only a build for CUDA has of streams."""
    import torch

    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
        torch._C._cuda_getCurrentRawStream = lambda device: 0  # type: ignore[attr-defined]
