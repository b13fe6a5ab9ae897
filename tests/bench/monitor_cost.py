"""What the monitor costs: microseconds a step, percent of compile time, against torch's own logging, in one
run.

    python -m tests.bench.monitor_cost [--pairs 40] [--runs 5] [--backend aot_eager]

Steps: one process trains a small compiled model; short stretches with and without the monitor alternate (in
the order ABBA, so that a slow spell meets both), and the difference within each pair of stretches is taken.
The steps are a fraction of a millisecond, so that a constant cost per step shows. Compiling: each variant in
a fresh process, in turn; the same program with a new length every few steps. Seconds are processor seconds of
the training process (wall seconds in brackets): other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VARIANTS = ("plain", "monitor", "monitor --guards", "TORCH_LOGS", "TORCH_TRACE")
#: A step of a real training, for the percentage (seconds).
REAL_STEP_S = 0.050
#: Each is a compile of the blocks, which share their code.
LENGTHS = tuple(range(32, 32 + 8 * 8, 8))
#: Times that all of them are compiled, with an empty cache each time: a cache holds at most torch's default
#: limit of 8 entries.
ROUNDS = 3


def build(backend: str, layers: int, width: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(layers)))
    for block in model:
        block.compile(backend=backend, dynamic=False)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)


def step(model: Any, optimizer: Any, length: int, width: int) -> None:
    import torch

    model(torch.ones(1, length, width, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def steady(backend: str, pairs: int, steps: int) -> dict[str, Any]:
    """Per-step seconds with and without the monitor, in pairs of stretches of one process."""
    from cftdiag.monitor import Monitor

    model, optimizer = build(backend, layers=1, width=8)
    for _ in range(50):
        step(model, optimizer, 8, 8)

    def stretch() -> float:
        cpu = time.process_time()
        for _ in range(steps):
            step(model, optimizer, 8, 8)
        return (time.process_time() - cpu) / steps

    def watched(directory: str, **options: Any) -> float:
        # Entering and leaving happen once a run: not part of a step.
        with Monitor(model, run_dir=directory, quiet=True, warmup_steps=0, **options):
            step(model, optimizer, 8, 8)
            step(model, optimizer, 8, 8)
            return stretch()

    found: dict[str, list[float]] = {"plain": [], "monitor": [], "guards": []}
    with tempfile.TemporaryDirectory() as directory:
        watched(directory)
        for i in range(pairs):
            for name in ("plain", "monitor") if i % 2 == 0 else ("monitor", "plain"):
                found[name].append(stretch() if name == "plain" else watched(directory))
            if i % 4 == 0:
                found["guards"].append(watched(directory, guards=True))
    with (
        tempfile.TemporaryDirectory() as directory,
        Monitor(model, run_dir=directory, quiet=True, warmup_steps=0) as monitor,
    ):
        step(model, optimizer, 8, 8)
        calls, started = 20_000, time.process_time()
        for _ in range(calls):
            monitor._optimizer_stepped(optimizer)
        callback = 1e6 * (time.process_time() - started) / calls
    difference = [1e6 * (m - p) for m, p in zip(found["monitor"], found["plain"], strict=True)]
    best = 1e6 * (min(found["monitor"]) - min(found["plain"]))
    quarter = statistics.quantiles(difference, n=4)
    return {
        "step_us": 1e6 * statistics.median(found["plain"]),
        "added_us": statistics.median(difference),
        "added_us_quartiles": [quarter[0], quarter[2]],
        "added_us_best": best,
        "callback_us": callback,
        "percent_of_50_ms": 100 * statistics.median(difference) / 1e6 / REAL_STEP_S,
        "guards_added_us": 1e6 * (min(found["guards"]) - min(found["plain"])),
        "pairs": pairs,
        "steps_each": steps,
    }


def work(variant: str, backend: str) -> None:
    """The compile-heavy program, in a process of its own: prints processor and wall seconds and the number of
    compiles.
    """
    import contextlib

    import torch

    from cftdiag.monitor import Monitor

    # What is imported lazily by the first compile belongs to no variant.
    warm, optimizer = build(backend, layers=1, width=8)
    step(warm, optimizer, 8, 8)
    torch._dynamo.reset()
    model, optimizer = build(backend, layers=4, width=64)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        if variant.startswith("monitor"):
            stack.enter_context(Monitor(model, run_dir=directory, guards="--guards" in variant, quiet=True))
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(ROUNDS):
            torch._dynamo.reset()
            for length in LENGTHS:
                step(model, optimizer, length, 64)
                step(model, optimizer, length, 64)
        seconds = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu_s": seconds[0], "wall_s": seconds[1]}))


def compiling(backend: str, runs: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for run in range(runs):
        order = VARIANTS if run % 2 == 0 else VARIANTS[::-1]
        for variant in order:
            with tempfile.TemporaryDirectory() as directory:
                env = {k: v for k, v in os.environ.items() if k not in ("TORCH_LOGS", "TORCH_TRACE")}
                env.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=str(Path(directory) / "cache"))
                if variant == "TORCH_LOGS":
                    env["TORCH_LOGS"] = "recompiles,graph_breaks,guards"
                elif variant == "TORCH_TRACE":
                    env["TORCH_TRACE"] = str(Path(directory) / "trace")
                command = [
                    sys.executable,
                    "-m",
                    "tests.bench.monitor_cost",
                    "--work",
                    variant,
                    "--backend",
                    backend,
                ]
                done = subprocess.run(command, env=env, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{variant} failed:\n{done.stderr[-3000:]}")
                found[variant].append(json.loads(done.stdout.splitlines()[-1]))
                print(
                    f"run {run + 1} {variant:17} {found[variant][-1]['cpu_s']:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40, help="pairs of stretches")
    parser.add_argument("--steps", type=int, default=500, help="steps of a stretch")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.backend)
        return
    import torch

    steps = steady(options.backend, options.pairs, options.steps)
    compiles = compiling(options.backend, options.runs)
    plain = [r["cpu_s"] for r in compiles["plain"]]
    percent = {}
    for name in VARIANTS[1:]:
        ratios = [100 * (r["cpu_s"] / p - 1) for r, p in zip(compiles[name], plain, strict=True)]
        added = statistics.median(
            1e3 * (r["cpu_s"] - p) / (ROUNDS * len(LENGTHS))
            for r, p in zip(compiles[name], plain, strict=True)
        )
        percent[name] = {
            "median": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
            "ms_a_compile": added,
        }
    if options.json:
        facts = {
            "torch": torch.__version__,
            "backend": options.backend,
            "steps": steps,
            "compiling": compiles,
            "compile_percent": percent,
        }
        print(json.dumps(facts, indent=1))
        return
    print(f"torch {torch.__version__}, backend {options.backend}, {os.cpu_count()} CPUs, one thread")
    low, high = steps["added_us_quartiles"]
    print(
        f"a step of {steps['step_us']:.0f} us, {steps['pairs']} pairs of {steps['steps_each']} steps: the monitor adds"
    )
    print(
        f"  {steps['added_us']:.1f} us (median; quartiles {low:.1f} .. {high:.1f}), {steps['percent_of_50_ms']:.3f}% of a 50 ms step"
    )
    print(
        f"  {steps['added_us_best']:.1f} us between the best stretches; with --guards {steps['guards_added_us']:.1f} us"
    )
    spread = f"{min(plain):.2f} .. {max(plain):.2f}"
    print(f"  {steps['callback_us']:.1f} us of it is the callback at the step's end, called by itself")
    print(
        f"compiling, processor seconds over {options.runs} runs: plain median {statistics.median(plain):.2f} s ({spread})"
    )
    for name, figures in percent.items():
        print(
            f"  {name:17} {figures['median']:+.1f}%  ({figures['min']:+.1f} .. {figures['max']:+.1f}), {figures['ms_a_compile']:+.1f} ms a compile"
        )


if __name__ == "__main__":
    main()
