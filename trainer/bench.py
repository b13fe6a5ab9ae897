"""The trainer as an arm of ``cftdiag bench --config``: its configuration with what the arm changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig, over, read_yaml

#: Options of a run that have no place in a comparison of steps, and what they become; None: left out.
_SET_ASIDE: Mapping[str, Any] = {
    "resume": None,
    "tracker": None,
    "compile_plan": None,
    "compile_cache": None,
    "measure_eager": None,
    "profile_steps": None,
    "preflight": None,
    "max_epochs": None,
    "max_tokens": None,
    "compile_model": None,
    "export": False,
    "checkpoint_every": 0,
    "checkpoint_epochs": False,
    "checkpoint_best": False,
    "validate_every": 10**9,
}


def own_scope(path: str) -> str:
    """The compile scope of a configuration; ``block`` for one that compiles nothing. Raises ``ValueError``."""
    scope = TrainConfig.from_yaml(path).scope
    return "block" if scope == "none" else scope


def write_arm(path: str, changes: Mapping[str, Any], folder: Path, *, steps: int) -> Path:
    """Write the configuration of one arm to ``folder/run.yaml`` and return its path. ``changes`` are those of
    :data:`cftdiag.bench.arms.KEYS`; output goes to ``folder/out``. Raises ``ValueError`` for what does not go
    together.
    """
    values = {k: v for k, v in read_yaml(path).items() if k not in _SET_ASIDE}
    values |= {k: v for k, v in _SET_ASIDE.items() if v is not None}
    # the gate ends the run: nothing of a last step is measured
    values |= {"max_steps": steps + 1, "output_dir": str(folder / "out")}
    if "method" in changes:
        values = over(values, {"method": changes["method"]})
    for key, name in (
        ("scope", "compile_scope"),
        ("dynamic", "dynamic"),
        ("ac", "ac"),
        ("pad", "pad_to_multiple_of"),
        ("backend", "compile_backend"),
    ):
        if key in changes:
            values[name] = changes[key]
    TrainConfig.from_mapping(values)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "run.yaml"
    written.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
    return written


def tokens(folder: Path) -> dict[int, int]:
    """Tokens of each step that an arm of ``folder`` has written. Raises ``OSError`` and ``ValueError``."""
    lines = (folder / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return {record["step"]: record["tokens"] for record in records}
