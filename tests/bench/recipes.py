"""`make bench-recipes`: each recipe of the trainer eager and under every compile scope, by ``cftdiag bench``.

A recipe is a configuration of the trainer; its arms take turns after each step, and steps are compared in pairs.

    python -m tests.bench.recipes [--steps N] [--only NAME ...] [--keep DIR] [--docs FILE]

``--keep`` holds configurations and results; what is there of another start is not measured again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from cftdiag.bench.statistics import Interval, median_interval, paired
from tests.bench.peers import processor

#: Recipe -> what its configuration says beside the common part.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "lora": {"method": "lora"},
    "qlora": {"method": "qlora"},
    "qat": {"method": "qat"},
    "dpo": {"objective": "dpo"},
    # Updates are what is compiled: one rollout for four of them.
    "grpo": {
        "objective": "grpo", "reward": "trainer.demo:reward", "grpo_completion_tokens": 24, "grpo_generations": 8,
        "grpo_iterations": 4, "batch_size": 2, "learning_rate": 1e-6,
    },
}  # fmt: skip
#: Recipes whose batches follow from what the arm's own weights write.
SAMPLED = ("grpo",)
WIDTH, LAYERS = 128, 2
TOKENS = 512


def write(folder: Path, name: str) -> Path:
    """Write model, data and the configuration of a recipe; returns the configuration."""
    from trainer import demo

    model = folder / "model"
    if not model.exists():
        demo.config(
            num_hidden_layers=LAYERS, hidden_size=WIDTH, intermediate_size=3 * WIDTH, head_dim=32
        ).save_pretrained(model)
        demo.tokenizer().save_pretrained(model)
        demo.write(folder / "data")
    values = {
        "model_name_or_path": str(model), "random_init": True, "device": "cpu", "batch_size": 8, "max_tokens_per_gpu": TOKENS,
        # one length: a second regime of Inductor's code would be a compile in the middle
        "length_buckets": [TOKENS], "learning_rate": 1e-4, "output_dir": str(folder / "out"), **RECIPES[name],
    }  # fmt: skip
    values["data_path"] = str(demo.data_of(folder / "data", str(values.get("objective", "sft"))))
    config = folder / f"{name}.yaml"
    config.write_text(json.dumps(values, indent=1) + "\n")
    return config


def measure(folder: Path, name: str, *, steps: int, warmup: int) -> dict[str, Any]:
    """The comparison of a recipe: schema ``cftdiag.bench/1``."""
    result = folder / f"{name}.json"
    if not result.exists():
        words = [
            *("bench", "--config", str(write(folder, name)), "--arm", "all", "--steps", str(steps)),
            *("--warmup", str(warmup), "--rounds", "1", "--json", str(result), "--timeout", "3600"),
        ]
        if name in SAMPLED:
            words += ["--allow-different", "batches"]
        subprocess.run([sys.executable, "-m", "cftdiag", *words], check=True, stdout=sys.stderr)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def row(name: str, arm: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """An arm of a recipe as a line of the table."""
    if arm["step_seconds"] is None:
        return f"| {name} | {arm['arm']} | {arm['failed'] or 'no step'} | | | | | | | |"
    spread = {key: 1000 * value for key, value in arm["step_seconds"].items()}
    against = arm["against_eager"]
    wall, processor_time, over_model, compiling, pays = "", "", "", "", ""
    if against is not None:
        wall, processor_time = (
            _interval(gain(data, "eager", arm["arm"], what)) for what in ("seconds", "cpu_seconds")
        )
        likely = against["break_even_cold"] and against["break_even_cold"]["median"]
        pays = "never" if likely is None else f"{likely:,} steps"
    if arm["arm"] != "eager":
        compiling = f"{arm['compile_seconds_cold']:.0f} s"
    if arm["arm"] == "model+loss":
        over_model = ", ".join(
            _interval(gain(data, "model", arm["arm"], what)) for what in ("seconds", "cpu_seconds")
        )
    return (
        f"| {name} | {arm['arm']} | {spread['median']:.0f} ({spread['p10']:.0f}-{spread['p90']:.0f}) | {wall} | {processor_time} | "
        f"{over_model} | {compiling} | {pays} | {arm['graphs']}, {arm['recompiles']} | {arm['peak_bytes'] / 1e9:.2f} |"
    )


def gain(data: Mapping[str, Any], one: str, other: str, what: str) -> Interval | None:
    """How much less a step of ``other`` takes than one of ``one``, over pairs; None without pairs."""
    values = {
        arm["arm"]: {
            (s["round"], s["step"]): s[what]
            for s in arm["samples"]
            if s["step"] > data["warmup"] and s[what] is not None and not s["compiled"]
        }
        for arm in data["arms"]
    }
    both = paired(values.get(one, {}), values.get(other, {}))
    return median_interval([a / b for a, b in both]) if both else None


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    if interval.low is None or interval.high is None:
        return f"{interval.middle:.2f}"
    return f"{interval.middle:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def page(found: Mapping[str, Mapping[str, Any]], words: Sequence[str]) -> str:
    """The figures as Markdown."""
    names = ("torch", "transformers", "torchao", "trl", "peft")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    lines = []
    for name, data in found.items():
        lines += [row(name, arm, data) for arm in data["arms"]]
    first = next(iter(found.values()))
    return "\n".join(
        [
            f"# Recipes, {datetime.date.today().isoformat()}",
            "",
            f"    {' '.join(words)}",
            "",
            f"{versions}; Python {platform.python_version()}; {processor()}, {os.cpu_count()} cores, one thread an arm.",
            f"Qwen3 of {LAYERS} layers, {WIDTH} wide, vocabulary 272, float32, SDPA, AdamW; packed rows of {TOKENS} tokens;",
            f"{first['steps']} steps, {first['warmup']} of them warm-up, all arms of a recipe in turn after each step.",
            "",
            "A step is in milliseconds of wall time, median (p10-p90); gains are medians of one arm's time by the other's over steps in",
            "pairs, with their 95% interval, of wall time and of processor time. The machine was not idle: what is beside an arm disturbs",
            "all arms of its recipe, processor time least.",
            "",
            "| recipe | compiled | step, ms | gain over eager | in processor time | over `model`: wall, processor | compiling | pays after "
            "| graphs, recompiles | peak GB |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the page where ``--docs`` says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--docs", type=Path)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cftdiag-recipes-") as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = {name: measure(folder, name, steps=asked.steps, warmup=asked.warmup) for name in asked.only}
    given = sys.argv[1:] if arguments is None else arguments
    text = page(found, ["python -m tests.bench.recipes", *given])
    print(text)
    if asked.docs is not None:
        asked.docs.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
