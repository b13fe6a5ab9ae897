"""A CUDA device that answers and is not there: its tensors stay in this machine's memory.

Device names in arguments are mapped to the CPU by a function mode, and in graphs by the nodes that Dynamo makes
of them, so that a compiled region names devices as it likes; Dynamo knows nothing of the mode and guards the
program as it is. ``torch.cuda`` and a tensor's ``device`` answer the script and its libraries as the device
would, and torch's own code as this machine does.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cftdiag.rehearse.settings import Rehearsal
from cftdiag.target.devices import DEVICES, Device
from cftdiag.torch_private.rehearsal import (
    DeviceContext,
    Generator,
    answer_devices,
    answer_raw_streams,
    around_backward,
    hide_mode,
    map_graph_arguments,
)
from cftdiag.torch_private.tracing import tree_map

#: Torch's own modules that a script meets as the device's face; all other code of torch gets true answers.
_FACES = (
    "torch.amp.",
    "torch.cuda.amp",
    "torch._dynamo.variables.functions",
    "torch._dynamo.variables.torch",
)


def install(settings: Rehearsal) -> Alias | None:
    """Let a device answer to CUDA; None where the machine's own is to answer."""
    if settings.device is None or torch.cuda.is_available():
        return None
    device = DEVICES[settings.device]
    local = settings.rank % settings.local_world_size
    alias = Alias(device, local)
    _answers(alias, device, settings.local_world_size, local)
    _map_autocast_state(alias)
    _map_classes(alias)
    answer_raw_streams()
    hide_mode(Alias)
    map_graph_arguments(alias.in_graph)
    answer_devices(alias.answered)
    around_backward(lambda: alias)
    alias.__enter__()
    return alias


class Alias(TorchFunctionMode):
    """Maps CUDA devices among the arguments of torch functions to the CPU, and back where a tensor is asked for
    its device.
    """

    def __init__(self, device: Device, local: int = 0) -> None:
        super().__init__()
        self.device = device
        self.local = local
        self.asked = False
        """Whether the script has used the device at all."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # thousands of calls a step come here, of which few name a device: the commonest first
        name = getattr(func, "__name__", "")
        if name == "__get__":
            asked = _OF_DEVICE.get(getattr(func, "__self__", None))
            if asked is not None and not self._torch_asks():
                return asked(self.answered(args[0].device))
            return func(*args, **(kwargs or {}))
        if name in _MOVES and args:
            self.asked = self.asked or name == "cuda"
            return args[0]
        if name == "get_device" and self.asked and not self._torch_asks():
            return self.answered(args[0].device).index
        at = _ORDINALS.get(name)
        named = kwargs or {}
        if (
            at is None
            and not _names_device(args)
            and "device" not in named
            and not _names_device(named.values())
        ):
            return func(*args, **named)
        if func is torch.device or name in _AS_THEY_ARE:
            return func(*args, **named)
        named = {key: self.mapped(value, ordinal=key == "device") for key, value in named.items()}
        return func(*(self.mapped(value, ordinal=i == at) for i, value in enumerate(args)), **named)

    def differs(self) -> str:
        """What is not as on the device."""
        return (
            f"CUDA was answered for by {self.device.name}, which is not here: tensors stay in this machine's memory, "
            "and autocast casts what it casts on a CPU"
        )

    def mapped(self, value: Any, *, ordinal: bool = False) -> Any:
        """The CPU for a CUDA device, in whichever way it is named; anything else as it is."""
        if is_cuda(value) or (ordinal and isinstance(value, int) and not isinstance(value, bool)):
            self.asked = True
            return torch.device("cpu")
        return value

    def answered(self, device: torch.device) -> torch.device:
        """The device that a tensor names when it is asked: this rank's, once the script has used any."""
        return torch.device("cuda", self.local) if self.asked and device.type == "cpu" else device

    def in_graph(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Target and arguments of a node of Dynamo's graph, its devices mapped."""
        if target in _MOVES:
            self.asked = self.asked or target == "cuda"
            return "to", (args[0], torch.device("cpu")), {}
        return target, tree_map(self.mapped, args), tree_map(self.mapped, kwargs)

    def _torch_asks(self) -> bool:
        """Whether torch's own code, or ours, has called the torch function that came here."""
        return str(sys._getframe(2).f_globals.get("__name__")).startswith(("torch.", "cftdiag."))


#: Functions whose class maps its device by itself, and what else depends on it.
_AS_THEY_ARE = frozenset({"_enter_autocast", "_exit_autocast"})
#: Methods of tensors that are nothing here.
_MOVES = frozenset({"cuda", "pin_memory"})
#: Functions that take a device's number by position -> that position.
_ORDINALS = {"to": 1, "_parse_to": 0}


def _names_device(values: Iterable[Any]) -> bool:
    """Whether any of these may be a device or its name."""
    return not _NAMING.isdisjoint(map(type, values))


_NAMING = frozenset({str, torch.device})


#: Version of the collectives library that answers: that of torch's builds for CUDA.
_NCCL = (2, 27, 5)


def is_cuda(value: Any) -> bool:
    """True for ``torch.device("cuda", 0)``, ``"cuda"`` and ``"cuda:1"``."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


#: Attributes of tensors that tell their device -> what to say of it.
_OF_DEVICE: dict[Any, Callable[[torch.device], Any]] = {
    torch.Tensor.device: lambda device: device,
    torch.Tensor.is_cuda: lambda device: device.type == "cuda",
    torch.Tensor.is_cpu: lambda device: device.type == "cpu",
}


# ---- torch.cuda and torch.accelerator ----


def _answers(alias: Alias, device: Device, count: int, local: int) -> None:
    current = [local]

    def set_device(index: Any) -> None:
        number = index if isinstance(index, int) else torch.device(index).index
        current[0] = current[0] if number is None else number

    def memory(*args: Any, **kwargs: Any) -> int:
        return 0

    zeroes = (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
        "max_memory_cached", "device_memory_used", "clock_rate", "utilization", "temperature", "power_draw",
    )  # fmt: skip
    quiet = (
        "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "init", "ipc_collect",
        "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "set_stream", "_lazy_init",
        "reset_max_memory_cached", "reset_peak_host_memory_stats", "set_sync_debug_mode",
        "_record_memory_history", "_dump_snapshot",
    )  # fmt: skip
    properties = _Properties(device)
    answers: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(zeroes, memory),
        **dict.fromkeys(quiet, lambda *a, **k: None),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: current[0],
        "set_device": set_device,
        "get_device_properties": lambda *a, **k: properties,
        "get_device_name": lambda *a, **k: device.name,
        "get_device_capability": lambda *a, **k: (device.major, device.minor),
        "is_bf16_supported": lambda *a, **k: device.major >= 8,
        "is_tf32_supported": lambda *a, **k: device.major >= 8,
        "can_device_access_peer": lambda *a, **k: True,
        "get_arch_list": lambda: [device.arch],
        "mem_get_info": lambda *a, **k: (device.total_memory, device.total_memory),
        "memory_stats": lambda *a, **k: {},
        "memory_summary": lambda *a, **k: "",
        "is_current_stream_capturing": lambda: False,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda *a, **k: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
        "set_rng_state": lambda *a, **k: None,
        "set_rng_state_all": lambda *a, **k: None,
        "host_memory_stats": lambda *a, **k: {},
        "memory_snapshot": lambda *a, **k: [],
        "list_gpu_processes": lambda *a, **k: "",
        "get_sync_debug_mode": lambda: 0,
        "graph_pool_handle": lambda: (0, 0),
        "current_stream": lambda *a, **k: _Stream(),
        "default_stream": lambda *a, **k: _Stream(),
        "stream": lambda *a, **k: contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.graphs):
            if hasattr(module, name):
                _replace(module, name, answer, alias)
    accelerator: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_accelerator": lambda *a, **k: torch.device("cuda"),
        "current_device_index": lambda: current[0],
        "set_device_index": set_device,
        "synchronize": lambda *a, **k: None,
        "current_stream": lambda *a, **k: _Stream(),
        "memory_allocated": memory,
        "max_memory_allocated": memory,
        "empty_cache": lambda *a, **k: None,
    }
    for name, answer in accelerator.items():
        if hasattr(torch.accelerator, name):
            _replace(torch.accelerator, name, answer, alias)
    _replace(torch.backends.cuda, "is_built", lambda: True, alias)
    _replace(torch.cuda.nccl, "version", lambda: _NCCL, alias)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        _replace(torch.cuda.nvtx, name, lambda *a, **k: 0, alias)
    torch.Tensor.record_stream = _not_recorded  # type: ignore[method-assign,assignment]
    torch.Generator = _Generator  # type: ignore[misc]
    torch.cuda.Stream = _Stream  # type: ignore[misc,assignment]
    torch.cuda.Event = _Event  # type: ignore[misc,assignment]
    torch.cuda.device = _Current  # type: ignore[misc,assignment]


#: Questions that torch's own code goes on asking this machine. What only acts on the device acts on nothing,
#: whoever asks.
_QUESTIONS = frozenset(
    {
        "is_available", "is_initialized", "device_count", "current_device", "get_device_properties", "get_device_name",
        "get_device_capability", "is_bf16_supported", "is_tf32_supported", "get_arch_list", "current_accelerator",
        "current_device_index", "is_built", "current_stream", "default_stream", "is_current_stream_capturing",
        "is_autocast_enabled", "get_autocast_dtype",
    }
)  # fmt: skip


def _replace(module: Any, name: str, answer: Callable[..., Any], alias: Alias) -> None:
    """Answer the script and its libraries; torch's own code goes on asking this machine."""
    real = getattr(module, name)

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if name in _QUESTIONS and caller.startswith("torch.") and not caller.startswith(_FACES):
            return real(*args, **kwargs)
        return answer(*args, **kwargs)

    # a compiled region that asks gets the answer as a constant, as it does from torch's own function
    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    setattr(module, name, call)


def _not_recorded(self: torch.Tensor, stream: Any) -> None:
    """``Tensor.record_stream`` takes torch's own streams alone."""


class _AnyGenerator(type(Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Generator)


class _Generator(Generator, metaclass=_AnyGenerator):
    """``torch.Generator`` that takes the device for the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return Generator("cpu" if is_cuda(device) else device)


class _Properties:
    """``torch.cuda.get_device_properties()`` of the device table."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def __repr__(self) -> str:
        return f"_CudaDeviceProperties(name='{self._device.name}', major={self._device.major}, minor={self._device.minor})"


class _Stream:
    """A stream on which everything has happened already."""

    device = torch.device("cpu")
    cuda_stream = 0
    stream_id = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0

    def query(self) -> bool:
        """True: nothing is pending."""
        return True

    def synchronize(self) -> None:
        """Nothing is pending."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing is pending."""

    def wait_event(self, event: Any) -> None:
        """Nothing is pending."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or _Event()


class _Event:
    """An event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Nothing is pending."""

    def wait(self, stream: Any = None) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """True: it has happened."""
        return True

    def synchronize(self) -> None:
        """Nothing is pending."""

    def elapsed_time(self, end: Any) -> float:
        """One millisecond, so that rates stay finite."""
        return 1.0


class _Current:
    """``with torch.cuda.device(0):``"""

    def __init__(self, device: Any) -> None:
        self.idx = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


# ---- classes that take a device ----


def _map_autocast_state(alias: Alias) -> None:
    """What the script asks of CUDA's autocast is true of the CPU's, which stands for it."""
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return enabled("cpu" if is_cuda(device_type) else device_type)

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        if not is_cuda(device_type):
            return dtype(device_type)
        return dtype("cpu") if enabled("cpu") else torch.float16

    _replace(torch, "is_autocast_enabled", is_autocast_enabled, alias)
    _replace(torch, "get_autocast_dtype", get_autocast_dtype, alias)


def _map_classes(alias: Alias) -> None:
    from torch.amp import autocast_mode, grad_scaler

    _map_autocast(autocast_mode.autocast)
    _first_argument(grad_scaler.GradScaler, "device", "cuda")
    _first_argument(DeviceContext, alias=alias)
    if not torch.distributed.is_available():
        return
    from torch.distributed import device_mesh, fsdp
    from torch.nn.parallel import DistributedDataParallel

    _first_argument(device_mesh.DeviceMesh)
    real = device_mesh.init_device_mesh

    @functools.wraps(real)
    def init_device_mesh(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        if is_cuda(device_type):
            alias.asked, device_type = True, "cpu"
        return real(device_type, *args, **kwargs)

    device_mesh.init_device_mesh = init_device_mesh
    torch.distributed.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]
    _without(DistributedDataParallel, "device_ids", "output_device")
    _without(fsdp.FullyShardedDataParallel, device_id=torch.device("cpu"))
    for config in (
        fsdp.FullStateDictConfig, fsdp.ShardedStateDictConfig, fsdp.FullOptimStateDictConfig,
        fsdp.ShardedOptimStateDictConfig,
    ):  # fmt: skip
        _never_offloads(config)


def _map_autocast(cls: Any) -> None:
    real = cls.__init__

    @functools.wraps(real)
    def initialise(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if is_cuda(device_type):
            # the device's own default, which is not the CPU's
            device_type, dtype = "cpu", dtype or torch.float16
        real(self, device_type, dtype, *args, **kwargs)

    cls.__init__ = initialise


def _first_argument(
    cls: Any, keyword: str | None = None, default: str | None = None, alias: Alias | None = None
) -> None:
    """Map the device that a class takes first, or by keyword. ``alias``: it puts tensors there."""
    real = cls.__init__

    @functools.wraps(real)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        if default is not None and not args and keyword not in kwargs:
            args = (default,)
        if alias is not None and (is_cuda(args[0]) if args else is_cuda(kwargs.get("device"))):
            alias.asked = True
        if args and is_cuda(args[0]):
            args = ("cpu", *args[1:])
        for name in ("device", "device_type"):
            if is_cuda(kwargs.get(name)):
                kwargs[name] = "cpu"
        real(self, *args, **kwargs)

    cls.__init__ = initialise


def _never_offloads(cls: Any) -> None:
    """Leave what is here already where it is: FSDP frees what it has offloaded from a device."""
    real = cls.__init__

    @functools.wraps(real)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.offload_to_cpu = False

    cls.__init__ = initialise


def _without(cls: Any, *names: str, **instead: Any) -> None:
    """Leave out the arguments that name a CUDA device, or give what stands for them."""
    real = cls.__init__

    @functools.wraps(real)
    def initialise(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        for name in names:
            kwargs.pop(name, None)
        real(self, module, *args, **kwargs | instead)

    cls.__init__ = initialise
