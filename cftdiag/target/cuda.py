"""A CUDA device that is not there, for Inductor and Triton.

`lowering` is active only while a graph is traced by AOTAutograd and lowered by Inductor; outside it the
program sees no GPU. Nothing is launched.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch

from cftdiag.target import native, rng, sdpa
from cftdiag.target.codegen import keep_code
from cftdiag.target.devices import DEVICES, Device
from cftdiag.target.errors import TargetUnavailable
from cftdiag.target.patches import Patch, applied, clear_caches
from cftdiag.torch_private import points
from cftdiag.torch_private.inductor import config, device_interface
from cftdiag.torch_private.tracing import TorchDispatchMode

#: torch's static launcher keeps no cubin, which is what is read here. Its setting has another name in some
#: releases.
STATIC_LAUNCHER: Mapping[str, Any] = {
    n: False for n in ("use_static_cuda_launcher", "use_static_triton_launcher") if hasattr(config, n)
}

#: What cannot be decided without the device is settled here; `lowering.assumptions` says so.
SETTINGS: Mapping[str, Any] = {
    "force_disable_caches": True,
    "compile_threads": 1,
    "autotune_local_cache": False,
    **STATIC_LAUNCHER,
    "shape_padding": False,
    "cpp_wrapper": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "benchmark_kernel": False,
    "benchmark_fusion": False,
}


def _interface(spec: Device) -> type:
    zero, nothing = staticmethod(lambda *a, **k: 0), staticmethod(lambda *a, **k: None)
    props = staticmethod(lambda device=None: spec)

    class OfflineCuda(device_interface.CudaInterface):
        class Worker:
            set_device, current_device, get_device_properties = nothing, zero, props

        current_device = get_raw_stream = exchange_device = maybe_exchange_device = memory_allocated = zero
        set_device = synchronize = raise_if_triton_unavailable = nothing
        device_count = staticmethod(lambda: 1)
        get_device_properties = props
        is_bf16_supported = staticmethod(lambda including_emulation=True: True)
        is_available = staticmethod(lambda: True)
        is_triton_capable = staticmethod(lambda device=None: True)
        get_compute_capability = staticmethod(lambda device=None: spec.major * 10 + spec.minor)

    return OfflineCuda


class TritonDriver:
    """Enough of a Triton driver to compile for ``spec``."""

    def __init__(self, spec: Device) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", spec.major * 10 + spec.minor, spec.warp_size)
        properties = {
            "max_shared_mem": spec.shared_memory_per_block_optin,
            "max_num_regs": spec.regs_per_multiprocessor,
            "multiprocessor_count": spec.multi_processor_count,
            "warpSize": spec.warp_size,
            "sm_clock_rate": spec.clock_rate,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }
        self.utils = types.SimpleNamespace(get_device_properties=lambda device: properties)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    @classmethod
    def is_active(cls) -> bool:
        return True


class _OnCpu(TorchDispatchMode):
    """Inductor's constant folder executes tiny factories on the device of the graph; do it on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = torch.device("cpu")
        if func is torch.ops.prims.device_put.default:
            args = (args[0], torch.device("cpu"), *args[2:])
        return func(*args, **kwargs)


def _fold_on_cpu(fold: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fold)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _OnCpu():
            return fold(self, *args, **kwargs)

    return run


def _answers(spec: Device) -> dict[str, Any]:
    """Functions of ``torch.cuda`` that are asked while tracing and lowering, those of them that this torch
    has.
    """

    def yes(including_emulation: bool = True) -> bool:
        return True

    found: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": lambda device=None: spec,
        "get_device_name": lambda device=None: spec.name,
        "get_device_capability": lambda device=None: (spec.major, spec.minor),
        "mem_get_info": lambda device=None: (spec.total_memory, spec.total_memory),
        "is_bf16_supported": yes,
        "is_tf32_supported": yes,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device="cuda": None,
    }
    return {name: value for name, value in found.items() if hasattr(torch.cuda, name)} | rng.answers()


def patches(spec: Device, on_code: Callable[[Any, str], None] | None = None) -> list[Patch]:
    """What is replaced while a graph is lowered for ``spec``."""
    system = {"device": {"name": spec.name}, "version": {"cuda": None, "triton": None}, "hash": spec.name}
    return [
        *(Patch(point=points.of_cuda(name), new=value) for name, value in _answers(spec).items()),
        Patch(point=points.CUDA_VERSION, new=torch.version.cuda or "13.0"),
        Patch(point=points.AVOID_DEVICE_INIT, new=property(lambda self: True)),
        Patch(point=points.INIT_GPU_CONTEXT, new=lambda device: None),
        Patch(point=points.COMPILE_TO_MODULE, new=keep_code(on_code)),
        # it hashes the whole of Triton, for caches that are off
        Patch(point=points.GET_SYSTEM, new=staticmethod(lambda: system)),
        Patch(point=points.DRAM_GBPS, new=lambda: spec.dram_gbps),
        Patch(point=points.CONSTANT_FOLDER_RUN, new=_fold_on_cpu(points.CONSTANT_FOLDER_RUN.get())),
        # a constant of the program stays where it is; its copy on the device has the same shape and layout
        Patch(point=points.CONSTANT_NAME, new=lambda self, name, device_override: name),
        Patch(point=points.SET_DRIVER, new=lambda: None),
        # the repro text of every graph would ask nvcc for its version
        Patch(point=points.SYSTEM_INFO_COMMENT, new=lambda: ""),
    ]


def why_not() -> str | None:
    """What this environment lacks for a CUDA target, None when nothing."""
    try:
        import triton
        import triton.backends.nvidia
    except ImportError as error:
        return f"Triton cannot be imported ({error}); pip install 'cftdiag[target]'"
    if not hasattr(triton.runtime.driver, "set_active"):
        return f"Triton {triton.__version__} has another driver interface; install 3.6 or later"
    try:
        native.library()
    except native.StubUnavailable as error:
        return str(error)
    return None


@contextlib.contextmanager
def lowering(
    name: str,
    on_code: Callable[[Any, str], None] | None = None,
    inductor_config: Mapping[str, Any] | None = None,
) -> Iterator[Device]:
    """Active only while a graph is traced and lowered for the device ``name``; yields the device."""
    spec = DEVICES[name]
    missing = why_not()
    if missing is not None:
        raise TargetUnavailable(name, missing)
    import triton

    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(native.switched_on())
        enter(applied(name, patches(spec, on_code)))
        enter(sdpa.as_on(spec))
        device_interface.get_interface_for_device("cuda")  # fills the table
        enter(
            mock.patch.dict(
                device_interface.device_interfaces, dict.fromkeys(("cuda", "cuda:0"), _interface(spec))
            )
        )
        driver = triton.runtime.driver
        enter(mock.patch.object(driver, "_active", driver._active))
        driver.set_active(TritonDriver(spec))
        enter(config.patch({**(inductor_config or {}), **SETTINGS}))
        clear_caches(points.CUDA_CACHES)
        stack.callback(clear_caches, points.CUDA_CACHES)
        yield spec
