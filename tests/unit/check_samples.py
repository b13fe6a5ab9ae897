"""Checks as the tool writes them (``cftdiag.check/1``), made by hand for tests of the renderings."""

from __future__ import annotations

import copy
from typing import Any

from cftdiag.findings import Finding, Remedy, Where


def _blocks(count: int, **facts: Any) -> list[dict[str, Any]]:
    base = {
        "class": "Qwen3DecoderLayer",
        "kind": "Qwen3DecoderLayer",
        "graphs": 1,
        "graph_breaks": 0,
        "recompiles": 0,
        "fullgraph": True,
        "graphs_counted": True,
    }
    return [{"fqn": f"model.layers.{i}", **base, **facts} for i in range(count)]


VIABLE: dict[str, Any] = {
    "schema": "cftdiag.check/1",
    "verdict": "viable",
    "subject": {
        "name": "Qwen3-4B",
        "type": "config",
        "model_class": "Qwen3ForCausalLM",
        "model_type": "qwen3",
        "parameters": 4022468096,
        "weights": "none",
        "attn": "sdpa",
        "dtype": "bfloat16",
        "lengths": [512, 640, 777, 1024],
        "batch_size": 1,
        "layers": "all",
        "ac": "none",
        "world_size": 1,
        "compile_scope": "block",
        "compile_kwargs": {"fullgraph": True, "dynamic": True},
        "packed": False,
        "method": "full",
    },
    "depth": "joint",
    "target": None,
    "environment": {
        "python": "3.11.7",
        "platform": "Linux",
        "torch": "2.13.0",
        "transformers": "5.24.0",
        "triton": "3.9.0",
        "cftdiag": "0.1.0",
    },
    "blocks": _blocks(36),
    "findings": [],
    "compiles": [
        {
            "compile_id": "0/0",
            "block": "model.layers.0",
            "step": 1,
            "length": 512,
            "seconds": 3.214,
            "cause": None,
        }
    ],
    "change_first": [],
    "forecast": {
        "compiles": 1,
        "recompiles": 0,
        "limit_hit": False,
        "steps": [],
        "seconds": 3.214,
        "note": "without Inductor's guards",
    },
    "timing": {
        "wall_s": 15.21,
        "passes": [
            {
                "mode": "fullgraph",
                "seconds": 11.3,
                "outcome": "ok",
                "peak_rss_gb": 0.664,
                "steps": [4.0, 2.0, 2.0, 2.0],
            },
            {"mode": "collect", "skipped": "every block was captured whole"},
        ],
        "peak_rss_gb": 0.664,
    },
    "undetermined": [],
    "check": None,
}

BRANCH = Finding(
    kind="graph_break",
    cause="data_dependent_branch",
    severity="error",
    blocks=("model.layers.*",),
    where=Where(file="/home/me/train/model.py", line=41, function="forward", code="if mask.all():"),
    gb_id="GB0170",
    count=36,
    evidence=("Unsupported Tensor.item() call with capture_scalar_outputs=False",),
    explanation="A Python branch on a value of a tensor ends the graph: Dynamo cannot know which way it goes.",
    remedies=(
        Remedy(summary="decide it on the host and pass a bool"),
        Remedy(
            summary="set torch._dynamo.config.capture_scalar_outputs",
            change={"torch._dynamo.config.capture_scalar_outputs": True},
            verified=False,
        ),
    ),
)
LENGTH = Finding(
    kind="recompile",
    cause="seq_len",
    severity="warning",
    blocks=("model.layers.0", "model.layers.1"),
    where=Where(file="/home/me/train/model.py", line=30, function="forward", code="h = self.attn(x)"),
    guard="tensor 'x' size mismatch at index 1. expected 512, actual 640",
    count=2,
    steps=(2, 3),
    lengths=(640, 777),
    explanation="The graph was compiled for one length.",
    remedies=(
        Remedy(
            summary="compile with dynamic=True",
            change={"dynamic": "true"},
            verified=True,
            before={"recompiles": 2},
            after={"recompiles": 0},
        ),
        Remedy(summary="pad to one length", unsafe=True),
    ),
)


def viable() -> dict[str, Any]:
    """All blocks whole, nothing to say."""
    return copy.deepcopy(VIABLE)


def not_viable() -> dict[str, Any]:
    """A break in every block that fullgraph refuses too, and a recompile."""
    data = viable()
    data.update(
        verdict="not_viable",
        findings=[BRANCH.to_dict(), LENGTH.to_dict()],
        blocks=[
            *_blocks(2, graphs=4, graph_breaks=1, recompiles=2, fullgraph=False),
            *_blocks(36, graphs=2, graph_breaks=1, fullgraph=False)[2:],
        ],
        undetermined=["which experts get tokens depends on activations; an even routing was assumed"],
    )
    data["compiles"] = [
        *data["compiles"],
        *(
            {**data["compiles"][0], "compile_id": f"0/{i}", "step": i + 1, "cause": "seq_len"}
            for i in range(1, 20)
        ),
    ]
    return data


def recompiles() -> dict[str, Any]:
    """Whole graphs, compiled more than once."""
    data = viable()
    data.update(
        verdict="viable_with_recompiles",
        findings=[LENGTH.to_dict()],
        blocks=_blocks(2, graphs=3, recompiles=2),
    )
    return data


def no_conclusion() -> dict[str, Any]:
    """A pass that did not end."""
    data = viable()
    data.update(
        verdict="error",
        blocks=[],
        compiles=[],
        undetermined=["the fullgraph pass did not end: stopped after 600 s"],
    )
    return data


def forecasted() -> dict[str, Any]:
    """A check with data: two regimes, the second first met at step 5."""

    def regime(name: str, bound: str, length: int, visits: int) -> dict[str, Any]:
        shown = {"batch_size": 4, "length": length, "variant": "padded"}
        return {
            "id": name,
            "bounds": ["B >= 2", bound],
            "representative": shown,
            "visits": visits,
            "variants": ["padded"],
        }

    def step(number: int, length: int, cause: str | None) -> dict[str, Any]:
        return {
            "step": number,
            "length": length,
            "batch_size": 4,
            "regime": "r1",
            "cause": cause,
            "seconds": 2.5,
        }

    data = recompiles()
    data["forecast"] = {
        "compiles": 2, "recompiles": 1, "limit_hit": None, "stopped": None, "seconds": 5.0, "exact": True,
        "steps": [step(1, 323, None), step(5, 387, "inductor_size_regime")],
        "regimes": [regime("r1", "B*S <= 4096/3", 323, 7), regime("r2", "B*S > 4096/3", 387, 8)],
        "suggestions": [{"action": "bucket", "multiple": None, "buckets": [384, 448], "graphs": 1, "new_shapes": 0, "extra_tokens": 0.1932}],
        "points": [["r1", 4, 323, 7], ["r2", 4, 387, 8]],
        "data": {"path": "<lens>.txt", "samples": 60, "tokens": 13261, "longest": 399, "steps": 15, "over_long": 0, "ranks": [{"rank": 0}]},
        "divergence": {"count": 0, "seconds": 0.0, "steps": []},
        "warmed": {"compiles": 2, "steps": []}, "notes": ["read as row lengths"],
    }  # fmt: skip
    return data
