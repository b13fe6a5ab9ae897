"""The end of each step as ``cftdiag bench`` wants it: tell what it took, then wait until the next may begin.

A sink of the monitor, in each rank of a run that is compared with others. It speaks one JSON object a line
through a Unix socket; the first has the facts of the run, the others a step each, and the answer is one word.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import socket
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cftdiag.events import Event
from cftdiag.monitor import process_info
from cftdiag.monitor.alarms import Alarm

GO = "go"
END = "end"
#: The process whose steps these are; None outside of a comparison.
_GATE: weakref.ref[Gate] | None = None


class Gate:
    """Sends steps to ``address`` (a Unix socket) and waits for the word. Memory is counted anew after step
    ``warmup``.
    """

    def __init__(self, address: str, warmup: int) -> None:
        import torch

        global _GATE
        _GATE = weakref.ref(self)
        self._torch = torch
        self._address, self._warmup = address, warmup
        self._losses: list[Any] = []
        self._shapes: list[list[int]] = []
        self._optimizer: Any = None
        self._stream: Any = None
        self._begun: tuple[float, float, Any] | None = None
        self._listen()

    # ---- what a step has ----

    def _listen(self) -> None:
        torch = self._torch
        backward, batches = torch.autograd.backward, torch.utils.data.DataLoader.__iter__

        @functools.wraps(backward)
        def seen_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                not torch.compiler.is_compiling()
                and isinstance(tensors, torch.Tensor)
                and tensors.numel() == 1
            ):
                self._losses.append(tensors.detach())
            return backward(tensors, *args, **kwargs)

        @functools.wraps(batches)
        def seen_batches(loader: Any) -> Any:
            return _Batches(batches(loader), self.batch)

        torch.autograd.backward = seen_backward
        torch.utils.data.DataLoader.__iter__ = seen_batches

        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._optimizer = self._optimizer or optimizer

        register_optimizer_step_post_hook(stepped)

    def batch(self, batch: Any) -> None:
        """Note the (rows, length) of a batch: of its first tensor of whole numbers with two dimensions."""
        if isinstance(batch, self._torch.Tensor):
            values: Iterable[Any] = (batch,)
        elif isinstance(batch, Mapping):
            values = batch.values()
        else:
            values = batch if isinstance(batch, list | tuple) else ()
        for value in values:
            if isinstance(value, self._torch.Tensor) and value.dim() == 2 and not value.is_floating_point():
                self._shapes.append(list(value.shape))
                return

    # ---- the monitor's calls ----

    def step(self, step: int, seconds: float) -> None:
        """Tell of the step that has ended, and wait. ``SystemExit`` when it was the last one."""
        taken, cpu = self._taken()
        losses, self._losses = [float(x) for x in self._losses], []
        shapes, self._shapes = self._shapes, []
        said = {
            "step": step,
            "seconds": taken,
            "cpu_seconds": cpu,
            "loss": sum(losses) if losses else None,
            "shapes": shapes,
            "peak_bytes": self._peak(),
        }
        try:
            if self._stream is None:
                self._connect()
            self._send(said)
            word = self._stream.readline().strip()
        except OSError:
            word = ""
        if word != GO:
            # asked to end; or whoever asked is gone, and a run that nobody measures must not go on
            sys.exit(0 if word == END else 3)
        if step == self._warmup:
            self._reset_peak()
        self._begin()

    def event(self, event: Event) -> None:
        """Nothing: the run directory has it."""

    def alarm(self, alarm: Alarm) -> None:
        """Nothing."""

    def close(self) -> None:
        """Hang up."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()

    # ---- clocks and memory ----

    def _begin(self) -> None:
        mark = None
        if self._cuda:
            mark = self._torch.cuda.Event(enable_timing=True)
            mark.record()
        self._begun = time.perf_counter(), _processor_seconds(), mark

    def _taken(self) -> tuple[float | None, float | None]:
        """(seconds, processor seconds) since the step began; None for the first one, which began before anybody
        looked. On a GPU they are between two CUDA events.
        """
        if self._begun is None:
            if self._cuda:
                self._torch.cuda.synchronize()
            return None, None
        wall, cpu, mark = self._begun
        if mark is None:
            return time.perf_counter() - wall, _processor_seconds() - cpu
        end = self._torch.cuda.Event(enable_timing=True)
        end.record()
        end.synchronize()
        return mark.elapsed_time(end) / 1e3, _processor_seconds() - cpu

    @property
    def _cuda(self) -> bool:
        return bool(self._torch.cuda.is_initialized())

    def _peak(self) -> int:
        if self._cuda:
            return int(self._torch.cuda.max_memory_allocated())
        with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _reset_peak(self) -> None:
        if self._cuda:
            self._torch.cuda.reset_peak_memory_stats()
            return
        # 5: the kernel's mark of the most memory begins anew (man proc_pid_clear_refs)
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as marks:
            marks.write("5")

    # ---- talk ----

    def _connect(self) -> None:
        link = socket.socket(socket.AF_UNIX)
        link.connect(self._address)
        self._stream = link.makefile("rw", encoding="utf-8")
        self._send(self._facts())

    def _send(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()

    def _facts(self) -> dict[str, Any]:
        torch = self._torch
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        return {
            "rank": process_info.rank(),
            "world_size": process_info.world_size(),
            "pid": os.getpid(),
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name() if self._cuda else "cpu",
            "threads": torch.get_num_threads(),
            "optimizer": None if self._optimizer is None else type(self._optimizer).__name__,
            "parameters": {
                str(dtype).removeprefix("torch."): sum(p.numel() for p in parameters if p.dtype == dtype)
                for dtype in dict.fromkeys(p.dtype for p in parameters)
            },
        }


class _Batches:
    """An iterator that shows each batch to somebody on its way."""

    def __init__(self, inner: Any, show: Any) -> None:
        self._inner, self._show = inner, show

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._inner)
        with contextlib.suppress(Exception):  # a batch of a kind nobody thought of is the script's to take
            self._show(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def note_batch(batch: Any) -> None:
    """For a loop without a DataLoader: the batch of this step."""
    gate = _GATE() if _GATE is not None else None
    if gate is not None:
        gate.batch(batch)


def _processor_seconds() -> float:
    """Of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
