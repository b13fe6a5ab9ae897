"""The towers of a multimodal model, which no step on text calls, are neither decomposed nor trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cftdiag.recipe.blocks import find_blocks
from trainer.config import TrainConfig
from trainer.idle import idle_modules, trained_blocks
from trainer.osft.coverage import coverage
from trainer.program import apply_method


def _model(model_type: str) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type))


IDLE: dict[str, tuple[str, ...]] = {
    "gemma3": ("model.vision_tower", "model.multi_modal_projector"),
    "git": ("git.image_encoder", "git.visual_projection"),
    "phi4_multimodal": ("model.embed_tokens_extend.image_embed", "model.embed_tokens_extend.audio_embed"),
}


@pytest.mark.parametrize("model_type", IDLE)
def test_towers_are_found_by_what_a_step_calls(model_type: str) -> None:
    model = _model(model_type)
    assert idle_modules(model) == IDLE[model_type]
    names = [name for name, _ in trained_blocks(model)]
    assert names and len(names) < len(find_blocks(model))
    assert not any(name.startswith(IDLE[model_type]) for name in names)


@pytest.mark.parametrize("options", [{}, {"osft": True}, {"lora": True}], ids=["full", "osft", "lora"])
def test_no_method_trains_or_changes_a_tower(options: dict[str, Any]) -> None:
    model = _model("git")
    tower = {name: tuple(p.shape) for name, p in model.git.image_encoder.named_parameters()}
    targets = apply_method(model, TrainConfig(demo=True, **options))
    assert {name: tuple(p.shape) for name, p in model.git.image_encoder.named_parameters()} == tower
    assert not any(p.requires_grad for p in model.git.image_encoder.parameters())
    assert any(p.requires_grad for p in model.git.encoder.parameters())
    if targets:
        found = coverage(model, [name for name, _ in trained_blocks(model)], targets)
        assert found.share > 0.98 and not any("image" in name or "visual" in name for name in found.outside)


def test_a_model_with_one_stack_is_all_trained() -> None:
    model = _model("qwen3")
    assert idle_modules(model) == () and len(trained_blocks(model)) == len(find_blocks(model))


def test_a_model_that_cannot_be_looked_at_is_all_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model("git")

    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("no kernel for meta")

    monkeypatch.setattr(type(model.base_model), "forward", broken)
    assert idle_modules(model) == ()
