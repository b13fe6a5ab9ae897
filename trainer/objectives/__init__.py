"""What is learnt: an objective says what batch a packed row becomes, what loss is made of its logits, and what the
loss is divided by. One file each; all of them are trained by the one loop of :mod:`trainer.loop`.

| file | learns |
|---|---|
| ``sft.py`` | the labelled tokens of a row; pre-training is the same on texts |
| ``dpo.py`` | pairs of a better and a worse answer |
| ``grpo.py`` | answers that the policy samples itself, by a function that rewards them |
"""

from __future__ import annotations

import importlib

from trainer.config import TrainConfig
from trainer.objectives.objective import Objective

_WHERE = {
    "sft": "sft:SupervisedFineTuning",
    "pretrain": "sft:SupervisedFineTuning",
    "dpo": "dpo:DPO",
    "grpo": "grpo:GRPO",
}


def objective_of(config: TrainConfig) -> Objective:
    """The objective that ``config`` names."""
    module, _, name = _WHERE[config.objective].partition(":")
    made: Objective = getattr(importlib.import_module(f"{__name__}.{module}"), name)(config)
    return made


__all__ = ["Objective", "objective_of"]
