"""The methods: what of a model is trained, how the plain model is changed for it, and what is exported. One
file each.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trainer.config import TrainConfig

if TYPE_CHECKING:
    from trainer.methods.method import Method

_CLASSES = {
    "full": "trainer.methods.full:Full",
    "osft": "trainer.methods.osft:OSFT",
    "lora": "trainer.methods.lora:LoRA",
    "qlora": "trainer.methods.qlora:QLoRA",
    "qat": "trainer.methods.qat:QAT",
}


def method_of(config: TrainConfig) -> Method:
    """The method of a run."""
    module, _, name = _CLASSES[config.method_name].partition(":")
    made: Method = getattr(importlib.import_module(module), name)(config)
    return made
