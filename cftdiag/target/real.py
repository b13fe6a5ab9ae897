"""The device that is here: the same reading, of what Inductor really compiles and Triton's autotuning really
picks.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch

from cftdiag.target.collect import Collector
from cftdiag.target.cuda import STATIC_LAUNCHER
from cftdiag.target.devices import DEVICES, Device
from cftdiag.torch_private import inductor, points
from cftdiag.torch_private.inductor import config


def present() -> Device:
    """The first CUDA device of this machine: sizes as it reports them, rates from the table where it is in
    it, else as torch estimates them.
    """
    found = torch.cuda.get_device_properties(0)
    sizes = {f.name: getattr(found, f.name) for f in dataclasses.fields(Device) if hasattr(found, f.name)}
    known = next((d for name, d in DEVICES.items() if name in found.name.lower()), None)
    if known is not None:
        return dataclasses.replace(known, **sizes)
    fp32 = float(inductor.get_device_tflops(torch.float32))
    shared = int(sizes.setdefault("shared_memory_per_block_optin", 48 << 10))
    sizes.setdefault("shared_memory_per_multiprocessor", shared + 1024)
    sizes.setdefault("clock_rate", 0)
    return Device(
        **sizes,
        dram_gbps=float(inductor.get_gpu_dram_gbps()),
        fp32_tflops=fp32,
        bf16_tflops=float(inductor.get_device_tflops(torch.bfloat16)),
        fp64_tflops=fp32 / 2,
    )


@contextlib.contextmanager
def compiling() -> Iterator[Device]:
    """The device here, while kernels are compiled only to be read."""
    with config.patch(dict(STATIC_LAUNCHER)):
        yield present()


class Reader:
    """Watches real compiles; `modules` are the compiled modules in the order of the collector's graphs."""

    def __init__(self) -> None:
        self.modules: list[Any] = []

    @contextlib.contextmanager
    def reading(self, collector: Collector) -> Iterator[None]:
        """Inside the block every graph that Inductor compiles goes to ``collector``; caches are off, so that
        none is missed.
        """
        generate, build = inductor.codegen, inductor.compile_to_module
        texts: dict[int, str] = {}

        def codegen(graph: Any) -> Any:
            result = generate(graph)
            texts[id(graph)] = getattr(result[0], "value", str(result[0]))
            return result

        def compile_to_module(graph: Any) -> Any:
            module = build(graph)
            self.modules.append(module)
            collector.on_code(graph, texts.pop(id(graph), ""))
            return module

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(inductor.GraphLowering, "codegen", codegen))
            stack.enter_context(mock.patch.object(*points.COMPILE_TO_MODULE.owner(), compile_to_module))
            stack.enter_context(collector.watching())
            stack.enter_context(config.patch(force_disable_caches=True, compile_threads=1))
            yield

    def winners(self, index: int) -> Mapping[str, Mapping[str, int]]:
        """Kernel -> settings of the configuration that autotuning has picked, for the kernels of graph
        ``index`` that have run.
        """
        found = {}
        for name, tuner in vars(self.modules[index]).items():
            if isinstance(tuner, inductor.CachingAutotuner) and len(getattr(tuner, "launchers", ())) == 1:
                picked = tuner.launchers[0].config
                found[name] = {
                    **picked.kwargs,
                    "num_warps": picked.num_warps,
                    "num_stages": picked.num_stages,
                }
        return found
