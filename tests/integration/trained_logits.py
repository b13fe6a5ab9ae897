"""What a checkpoint computes in the trainer's own program, for exports to be held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer.checkpoints.layout import read_state
from trainer.checkpoints.tensors import load
from trainer.config import TrainConfig
from trainer.distributed import process_group
from trainer.optim import make_optimizer
from trainer.program import build


def ids() -> torch.Tensor:
    return torch.randint(4, 260, (1, 48), generator=torch.Generator().manual_seed(1))


def trained_logits(path: Path, **values: Any) -> torch.Tensor:
    """Of the trained model itself, read back from a checkpoint; ``values`` are laid over its configuration."""
    state = read_state(path)
    config = TrainConfig.from_mapping({**state.config, **values, "loss_chunks": 1})
    with process_group("cpu"):
        program = build(config, weights=False, ranks=state.ranks)
        load(path, program.model, make_optimizer(program.model, config))
        seen = []
        program.model.get_output_embeddings().register_forward_hook(
            lambda _module, _args, output: seen.append(output.detach().clone())
        )
        program.model.eval()
        with torch.no_grad():
            program.model(labels=ids(), input_ids=ids(), position_ids=torch.arange(48)[None])
    return seen[0]
