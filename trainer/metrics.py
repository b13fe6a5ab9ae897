"""What a run tells: one JSON line a step, and a progress display on rank 0."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from cftdiag.cache_keys import missed_key
from trainer.weights import elements

#: Dense bfloat16 peak in FLOP/s by a part of the device's name, from the vendors' data sheets (without
#: sparsity).
_PEAK = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}


class Metrics:
    """Writes ``metrics.jsonl`` and draws; does nothing on ranks other than 0."""

    def __init__(self, path: Path, *, total: int, enabled: bool, append: bool = False) -> None:
        self._enabled = enabled
        self._total = total
        self._full = False
        self._progress: Any = None
        if enabled:
            self._path = path
            if not append:
                _set_aside(path)
            self._open()

    def __enter__(self) -> Metrics:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            console = Console(stderr=True)
            self._progress = Progress(
                TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=20), TimeRemainingColumn(), TextColumn("{task.description}"),
                console=console, disable=not console.is_terminal,
            )  # fmt: skip
            self._task = self._progress.add_task("", total=self._total)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._enabled:
            self._progress.stop()
            with contextlib.suppress(OSError):
                self._file.close()

    def say(self, text: str) -> None:
        """One line on the console, above the progress bar."""
        if self._enabled:
            if self._progress is not None and not self._progress.disable:
                self._progress.console.print(text, markup=False, highlight=False)
            else:
                print(text, file=sys.stderr, flush=True)

    def write(self, record: dict[str, Any]) -> None:
        """One step's line, to the file at once and to the display."""
        if not self._enabled:
            return
        self._put(json.dumps(record) + "\n")
        text = summary(record)
        if self._progress.disable:
            print(text, file=sys.stderr, flush=True)
        self._progress.update(self._task, completed=record["step"], description=text)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "a", encoding="utf-8")

    def _put(self, line: str) -> None:
        # A full disk may get room again, and until then the line waits in the file's buffer: training goes
        # on. A file that was removed would take lines that nobody can read.
        try:
            if not self._path.exists() or not os.path.samestat(
                os.stat(self._path), os.fstat(self._file.fileno())
            ):
                self.say(
                    f"warning: {self._path} was removed or replaced while it was written; it begins again here"
                )
                self._file.close()
                self._open()
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            if not self._full:
                self.say(f"warning: {self._path}: {error.strerror or error}; lines may be missing")
            self._full = True


def _set_aside(path: Path) -> None:
    """Move what another run wrote to ``metrics.jsonl.1`` or the next number that is free, as its checkpoints
    are.
    """
    if path.exists() and path.stat().st_size:
        number = 1
        while (aside := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        path.rename(aside)


def summary(record: dict[str, Any]) -> str:
    """A step's line for people."""
    if record.get("skipped"):
        return f"step {record['step']}  skipped: the loss or a gradient is not finite"
    parts = [f"step {record['step']}", f"loss {record['loss']:.4f}", f"grad {record['grad_norm']:.3f}"]
    parts[2:2] = [
        f"{name} {record[name]:.3f}" for name in ("accuracy", "reward") if record.get(name) is not None
    ]
    if record["grad_norm_raw"] != record["grad_norm"]:
        parts[-1] += f" (raw {record['grad_norm_raw']:.3f})"
    parts += [f"lr {record['lr']:.2e}", f"{record['tokens_per_second']:,.0f} tok/s"]
    if record.get("mfu") is not None:
        parts.append(f"MFU {record['mfu']:.1%}")
    if record.get("data_seconds", 0) > 0.1 * record.get("seconds", 0):
        parts.append(f"waited {record['data_seconds']:.1f} s for data")
    if record.get("eager"):
        parts.append("eager")
    if record["compile_seconds"]:
        parts.append(f"compiled {record['compile_seconds']:.1f} s")
    if caches := record.get("caches"):
        parts.append("caches: " + ", ".join(f"{count} {answer}" for answer, count in sorted(caches.items())))
    if missed := record.get("cache_misses"):
        parts.append(f"missed {missed[0]['cache']}: {missed_key(missed[0])}")
    if record["recompiles"]:
        first = record["recompiles"][0]
        told = "; ".join(text for text in (first.get("cause"), first.get("note")) if text)
        parts.append(f"{len(record['recompiles'])} recompiles: {first['reason']}{told and f' ({told})'}")
    if record.get("leak") is not None:
        parts.append(f"leak {record['leak']:.1e}")
    if record.get("val_loss") is not None:
        parts.append(f"val {record['val_loss']:.4f}")
    return "  ".join(parts)


def flops_per_token(model: nn.Module) -> int:
    """4 N + 2 T: forward (2 N), gradients of activations (2 N) and of the T trained parameters (2 T), over the
    parameters that take part in a matmul; 6 N where all are trained (PaLM's convention, attention and
    recomputation not counted).
    """
    embedding = model.get_input_embeddings().weight
    looked_up = None if model.get_output_embeddings().weight is embedding else embedding
    trained = sum(p.numel() for p in model.parameters() if p is not looked_up and p.requires_grad)
    return 4 * elements(model, without=looked_up) + 2 * trained


def peak_flops(device: torch.device) -> float | None:
    """Of one device in bfloat16; None for one whose figure is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAK.items() if part in name), None)


def memory(device: torch.device) -> dict[str, int] | None:
    """Peak and total bytes of a GPU; None elsewhere."""
    if device.type != "cuda":
        return None
    return {"peak": torch.cuda.max_memory_allocated(device), "total": torch.cuda.mem_get_info(device)[1]}
