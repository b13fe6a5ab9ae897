"""Run by torchrun on four ranks: HSDP of two replicas of two shards. ``torchrun --nproc-per-node 4
tests/integration/parallel_worker.py OUT``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

METHODS: dict[str, dict[str, Any]] = {
    "full": {"max_tokens_per_gpu": 256, "batch_size": 16},
    "late": {"max_tokens_per_gpu": 256, "batch_size": 16, "grad_sync": "last"},
    "osft": {"osft": True, "osft_leak_every": 1},
}


def train(method: str, out: Path, **values: Any) -> None:
    """Three steps of a model that is at ``out/model``, in float64."""
    import trainer

    trainer.run_training(
        {
            "model_name_or_path": str(out / "model"), "random_init": True, "data_path": str(out / "data.jsonl"), "train_dtype": "float64",
            "osft_upcast_dtype": "float64", "device": "cpu", "max_tokens_per_gpu": 256, "batch_size": 8, "max_steps": 3, "learning_rate": 1e-3,
            "export": False, **METHODS[method], **values,
        }
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    from trainer.distributed import process_group

    with process_group("cpu"):
        for method in METHODS:
            train(method, Path(sys.argv[1]), replicas=2, output_dir=f"{sys.argv[1]}/{method}4")
