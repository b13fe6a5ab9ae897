"""The check of Qwen3-4B against ``torch._dynamo.explain`` on the same model: whole-process seconds and peak
memory, in one run.

    python -m tests.bench.check_vs_explain [--runs 3]

The check: 36 blocks, forward and backward (depth joint), four lengths, every pass it needs, no weights.
``explain``: the same model with weights of the real size in bfloat16, one length, forward only, which is all
that it does. The two are run in turn, so that a slow spell of the machine meets both. Ratios are medians over
the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

MODEL = "Qwen3-4B"

EXPLAIN = """
import torch, sys
from cftdiag.check import catalogue
from transformers import AutoConfig, AutoModelForCausalLM
entry = catalogue.find({model!r})
config = AutoConfig.for_model(entry.model_type, **dict(entry.config, use_cache=False))
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
model = model.to_empty(device="cpu").train()
with torch.no_grad():
    for p in model.parameters():
        p.fill_(0.01)
ids = torch.arange(512)[None] % config.vocab_size
out = torch._dynamo.explain(model)(input_ids=ids, labels=ids)
print("graphs", out.graph_count, "breaks", out.graph_break_count)
"""


def tree_rss(pid: int) -> int:
    """Proportional set size in bytes of a process and its descendants: memory shared by a fork is counted
    once.
    """
    total = 0
    for child in [pid, *_descendants(pid)]:
        try:
            for line in Path(f"/proc/{child}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue  # ended in between
    return total


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def measure(command: list[str]) -> dict[str, float | str]:
    """Wall seconds, processor seconds and peak memory (GB) of a command with all its children."""
    peak = 0

    def watch(process: subprocess.Popen[str]) -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, tree_rss(process.pid))
            time.sleep(0.1)

    before, started = os.times(), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watcher = threading.Thread(target=watch, args=(process,))
    watcher.start()
    output, _ = process.communicate()
    wall, after = time.monotonic() - started, os.times()
    watcher.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed:\n{output[-3000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_gb": peak / 1e9,
        "last_line": output.strip().splitlines()[-1] if output.strip() else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    check = [sys.executable, "-m", "cftdiag", "check", "--model", MODEL, "--attn", "sdpa", "-q"]
    explain = [sys.executable, "-c", EXPLAIN.format(model=MODEL)]
    rows = []
    for i in range(options.runs):
        pair = {"check": measure(check), "explain": measure(explain)}
        rows.append(pair)
        for name, figures in pair.items():
            print(
                f"run {i + 1} {name:8} wall {figures['wall_s']:6.1f} s  cpu {figures['cpu_s']:6.1f} s  peak {figures['peak_gb']:6.2f} GB"
                f"  {figures['last_line']}",
                file=sys.stderr,
                flush=True,
            )
    ratios = {
        key: [float(r["check"][key]) / float(r["explain"][key]) for r in rows]
        for key in ("wall_s", "cpu_s", "peak_gb")
    }
    summary = {
        k: {"median": round(statistics.median(v), 3), "min": round(min(v), 3), "max": round(max(v), 3)}
        for k, v in ratios.items()
    }
    if options.json:
        print(json.dumps({"model": MODEL, "runs": rows, "check_over_explain": summary}, indent=1))
        return
    print(f"check of {MODEL} over torch._dynamo.explain, {options.runs} pairs (median, min..max):")
    for key, figures in summary.items():
        print(f"  {key:8} {figures['median']:.3f}x  {figures['min']:.3f}..{figures['max']:.3f}")


if __name__ == "__main__":
    main()
