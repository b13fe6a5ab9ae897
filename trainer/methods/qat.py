"""Quantisation-aware training: every parameter is trained, and the targets compute with weights (and inputs) as
they will be rounded; the export converts them.

torchao prepares the layers and converts them. Its layers are Linears with the same names, so that sharding,
checkpoints and the export of the plain model need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.methods import torchao
from trainer.methods.method import Beside, Known, Method, Trained
from trainer.osft.surgery import Target
from trainer.targets import find_targets, is_conv1d


class QAT(Method):
    """Fake-quantised targets."""

    def change(self, model: nn.Module, known: Known) -> tuple[Target, ...]:
        """Put torchao's fake-quantised layers in place of the targets."""
        torchao.require("qat")
        targets = find_targets(model, self.config.qat_target_patterns)
        group = self.config.qat_group_size
        for name, linear in targets.items():
            if is_conv1d(linear):
                raise ValueError(
                    f"qat does not take Conv1D targets ({name}); use --osft or full fine-tuning for {model.config.model_type}"
                )
            if linear.in_features % group:
                raise ValueError(
                    f"{name} has {linear.in_features} inputs, which are no whole groups of qat-group-size {group}; give less"
                )
        quantization = torchao.quantization()
        prepare = quantization.qat.QATConfig(self._scheme(), step="prepare")
        quantization.quantize_(model, prepare, filter_fn=lambda _module, name: name in targets)
        return ()

    def beside(self, trained: Trained) -> Beside | None:
        """The quantised model, as transformers reads it with torchao."""
        return Beside(name="quantized", write=self._convert)

    def lines(self, model: nn.Module, blocks: Iterable[str], targets: tuple[Target, ...]) -> list[str]:
        """What is rounded."""
        kind = torchao.quantization().qat.FakeQuantizedLinear
        count = sum(isinstance(module, kind) for module in model.modules())
        inputs = ", their inputs to 8 bits" if self.config.qat_scheme == "int8-int4" else ""
        return [
            f"{count} weights trained as they are rounded to 4 bits in groups of {self.config.qat_group_size}{inputs}"
        ]

    def _scheme(self) -> Any:
        """torchao's configuration of what the model is converted to."""
        quantization = torchao.quantization()
        group = quantization.granularity.PerGroup(self.config.qat_group_size)
        if self.config.qat_scheme == "int4":
            return quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group)
        return quantization.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=group
        )

    def _convert(self, plain: Path, directory: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TorchAoConfig

        with torch.device("meta"):
            shape = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(plain))
        targets = find_targets(shape, self.config.qat_target_patterns)
        others = [n for n, m in shape.named_modules() if isinstance(m, nn.Linear) and n not in targets]
        model = AutoModelForCausalLM.from_pretrained(
            plain,
            dtype="auto",
            quantization_config=TorchAoConfig(quant_type=self._scheme(), modules_to_not_convert=others),
        )
        model.save_pretrained(directory)
        if (plain / "tokenizer.json").exists():
            AutoTokenizer.from_pretrained(plain).save_pretrained(directory)
