"""`make bench-peers`: other trainers and ours on the same model, rows, order and machine, in one run.

Each trainer is an arm of ``cftdiag bench``: a process of its own, its steps taken in turn with those of the others,
and told by processor seconds, which a busy machine disturbs least. Figures are ratios within one run. A trainer that
is not installed is left out, and said so. One that does not go with the packages of this environment gets its own:
``--python sft=PATH`` names its interpreter, ``--environments DIR`` makes one for each peer there.

    python -m tests.bench.peers [--steps N] [--docs FILE] [--python PEER=PATH] [--environments DIR]
        [--arm ARM]...
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.bench import driver, summary
from cftdiag.bench.arms import EAGER, Arm
from tests.bench import environments
from tests.bench.environments import Environment
from trainer import bench as ours

SHAPE = {
    "model_type": "qwen3", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024,
    "tie_word_embeddings": False, "architectures": ["Qwen3ForCausalLM"],
}  # fmt: skip
#: One row a step. All are in one regime of Inductor's C++ code (rows x heads below 4,096).
LENGTHS = (416, 320, 512, 384, 448)
#: Arm -> what it is, and the package that it needs.
PEERS: Mapping[str, tuple[str, str]] = {
    EAGER: ("this trainer, eager", "trainer"),
    "block": ("this trainer, every block compiled", "trainer"),
    "trainer": ("transformers Trainer, eager", "transformers"),
    "trainer-compiled": ("transformers Trainer, torch_compile=True", "transformers"),
    "sft": ("TRL SFTTrainer, eager", "trl"),
    "sft-compiled": ("TRL SFTTrainer, torch_compile=True", "trl"),
}
#: Peer -> what its environment needs beside torch.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "trainer": ("transformers", "accelerate", "datasets"),
    "sft": ("trl", "transformers", "accelerate", "datasets"),
}
PACKAGES = ("torch", "transformers", "trl", "accelerate")
#: Trainers that were asked about and are no arm, and why.
NOT_RUN: Mapping[str, str] = {
    "torchtune 0.6.1": "it has no Qwen3, and imports torchao.dtypes.nf4tensor, which the torchao for torch 2.13 (0.18) has not",
    "torchtitan 0.3.0": "it has no CPU device: without an accelerator it takes CUDA (torchtitan/tools/utils.py, get_device_info)",
}


def prepare(folder: Path, steps: int) -> Path:
    """Write model, rows and our configuration; returns the configuration. ``ordered.jsonl`` has the rows in the order
    in which ours takes them.
    """
    from trainer.config import TrainConfig
    from trainer.data import open_data
    from trainer.demo import tokenizer

    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(SHAPE))
    tokenizer().save_pretrained(model)
    numbers = random.Random(0)
    rows = []
    for i in range(steps + 1):
        ids = [numbers.randrange(10, SHAPE["vocab_size"]) for _ in range(LENGTHS[i % len(LENGTHS)])]
        rows.append({"input_ids": ids, "labels": ids})
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "model_name_or_path": str(model), "random_init": True, "data_path": str(data), "batch_size": 1,
        "max_tokens_per_gpu": max(LENGTHS) + 1, "pad_to_multiple_of": 1, "learning_rate": 1e-4, "attn": "sdpa",
        "output_dir": str(folder / "planned"), "compile_scope": "block",
    }  # fmt: skip
    config = folder / "run.yaml"
    config.write_text(json.dumps(values))
    planned = open_data(TrainConfig.from_mapping(values), None, vocabulary=SHAPE["vocab_size"], world=1)
    order = [row.samples[0] for step in planned.steps for micro in step.rows for row in micro]
    (folder / "ordered.jsonl").write_text("".join(json.dumps(rows[i]) + "\n" for i in order))
    return config


def command(
    config: Path, folder: Path, steps: int, arm: Arm, number: int, place: Path, pythons: Mapping[str, str]
) -> driver.Command:
    """How an arm is started; ``pythons`` has the interpreters of peers with an environment of their own."""
    if arm.name in (EAGER, "block"):
        written = ours.write_arm(
            str(config), {"scope": "none" if arm.name == EAGER else "block"}, place, steps=steps
        )
        return driver.Command(words=[sys.executable, "-m", "trainer", "--config", str(written)])
    which, _, compiled = arm.name.partition("-")
    words = [pythons.get(which, sys.executable), "-m", "tests.bench.peer_trainers", which, str(folder)]
    return driver.Command(words=[*words, *(["--torch-compile"] if compiled else [])])


def peer_of(arm: str) -> str:
    """The trainer of an arm, as ``--python`` names it; empty for ours."""
    which = arm.partition("-")[0]
    return which if which in NEEDS else ""


def missing(seen: Mapping[str, Environment]) -> dict[str, str]:
    """Arm -> why it is left out."""
    return {
        name: f"{package} is not installed"
        for name, (_, package) in PEERS.items()
        if peer_of(name) and seen[peer_of(name)].versions[package] is None
    }


def measure(
    steps: int, warmup: int, wanted: Sequence[str], pythons: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str], dict[str, Environment]]:
    """(the comparison, arm -> why it was left out, peer -> its environment)."""
    seen = {peer: environments.look(pythons.get(peer, sys.executable), PACKAGES) for peer in ("", *NEEDS)}
    left_out = missing(seen)
    arms = [
        Arm(name=name)
        for name in PEERS
        if name not in left_out and (name == EAGER or not wanted or name in wanted)
    ]
    with tempfile.TemporaryDirectory(prefix="cftdiag-peers-") as name:
        folder = Path(name)
        config = prepare(folder, steps)
        plan = driver.Plan(
            arms=arms,
            command=lambda arm, number, place: command(config, folder, steps, arm, number, place, pythons),
            steps=steps,
            warmup=warmup,
            rounds=1,
            together=True,
            timeout=3600,
        )
        runs, _ = driver.run(plan, lambda text: print(text, file=sys.stderr, flush=True))
    what = {"subject": "peers", "together": True, "rounds": 1, "steps": steps}
    # each has an optimizer and batches of its own making; the loss of ours is a sum over chunks
    allowed = ("parameters", "optimizer", "batches", "loss")
    return summary.to_dict(arms, runs, what=what, warmup=warmup, allowed=allowed), left_out, seen


def page(
    data: Mapping[str, Any],
    left_out: Mapping[str, str],
    seen: Mapping[str, Environment],
    words: Sequence[str],
) -> str:
    """The figures as Markdown."""
    base = next(arm for arm in data["arms"] if arm["arm"] == EAGER)["cpu_seconds"]["median"]
    versions = _versions(seen[""])
    own = [
        f"- {peer}: in an environment of its own, {_versions(found)}."
        for peer, found in seen.items()
        if found.python != seen[""].python
    ]
    rows = []
    for arm in data["arms"]:
        text = PEERS[arm["arm"]][0]
        if arm["cpu_seconds"] is None:
            rows.append(f"| {text} | {arm['failed'] or 'no step'} | | | | | |")
            continue
        spread = {key: value / base for key, value in arm["cpu_seconds"].items()}
        late = ", ".join(map(str, arm["late_compiles"])) or "none"
        rows.append(
            f"| {text} | {spread['median']:.2f} ({spread['p10']:.2f}-{spread['p90']:.2f}) | "
            f"{arm['compile_seconds_cold'] / base:.0f} | {arm['graphs']} | {arm['recompiles']} | {late} | "
            f"{arm['peak_bytes'] / 1e9:.2f} GB |"
        )
    return (
        "\n".join(
            [
                f"# Peers, {datetime.date.today().isoformat()}",
                "",
                f"    {' '.join(words)}",
                "",
                f"{versions}; Python {platform.python_version()}; {processor()}, {os.cpu_count()} cores, one thread a trainer.",
                f"Qwen3 of {SHAPE['num_hidden_layers']} layers, {SHAPE['hidden_size']} wide, vocabulary {SHAPE['vocab_size']:,}, float32, SDPA, "
                f"AdamW; one row of {min(LENGTHS)} to {max(LENGTHS)} tokens a step, the same rows in the same order;",
                f"{data['steps']} steps, {data['warmup']} of them warm-up, trainers in turn after each step.",
                "",
                "Processor seconds a step are in units of this trainer's eager step of the same run, median (p10-p90). Compiling is in such",
                "steps too, and is wall time on a machine that was not idle. Steps that compiled are left out of the median.",
                "",
                "| trainer | processor time a step | compiling, in eager steps | compiles | recompiles | late compiles in step | peak resident |",
                "|---|---|---|---|---|---|---|",
                *rows,
                "",
                *own,
                *[f"- {PEERS[name][0]}: not run, {why}." for name, why in left_out.items()],
                *[f"- {name}: not run, {why}." for name, why in NOT_RUN.items()],
                "- Ours puts one padding token behind a row, so that its length tells nothing, and so passes a mask; the others pass none.",
            ]
        ).rstrip()
        + "\n"
    )


def _versions(found: Environment) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.versions.items() if version)


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the page where ``--docs`` says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path)
    parser.add_argument(
        "--arm", action="append", default=[], choices=list(PEERS), help="beside eager; default: all"
    )
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH")
    parser.add_argument("--environments", type=Path, metavar="DIR")
    asked = parser.parse_args(arguments)
    try:
        pythons = environments.named(asked.python, NEEDS)
        if asked.environments is not None:
            for peer in sorted(NEEDS.keys() - pythons.keys()):
                pythons[peer] = environments.make(asked.environments / peer, NEEDS[peer])
        data, left_out, seen = measure(asked.steps, asked.warmup, asked.arm, pythons)
    except ValueError as error:
        parser.error(str(error))
    if asked.json is not None:
        asked.json.write_text(json.dumps(data, indent=1))
    given = sys.argv[1:] if arguments is None else arguments
    text = page(data, left_out, seen, ["python -m tests.bench.peers", *given])
    print(text)
    if asked.docs is not None:
        asked.docs.parent.mkdir(parents=True, exist_ok=True)
        asked.docs.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
