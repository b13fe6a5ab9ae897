"""The loss: the sum, its chunks, its memory, and logits as each family makes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cftdiag.recipe.loss import chunked_loss, cross_entropy_sum, head_of, install_loss, verify_head
from cftdiag.recipe.train_recipe import TrainRecipe

IGNORE = -100


def _case(
    tokens: int = 24, hidden: int = 8, vocabulary: int = 50
) -> tuple[torch.Tensor, torch.Tensor, nn.Linear]:
    torch.manual_seed(0)
    labels = torch.randint(0, vocabulary, (1, tokens))
    labels[:, ::3] = IGNORE
    return (
        torch.randn(1, tokens, hidden, dtype=torch.float64, requires_grad=True),
        labels,
        nn.Linear(hidden, vocabulary, dtype=torch.float64),
    )


@pytest.mark.parametrize("chunks", [1, 3, 8, 24])
def test_chunks_change_neither_loss_nor_gradients(chunks: int) -> None:
    hidden, labels, head = _case()
    expected = F.cross_entropy(head(hidden)[0], labels[0], reduction="sum")
    wanted = torch.autograd.grad(expected, (hidden, head.weight, head.bias))
    loss = chunked_loss(hidden, (labels,), head, cross_entropy_sum, chunks)
    assert torch.allclose(loss, expected)
    for a, b in zip(torch.autograd.grad(loss, (hidden, head.weight, head.bias)), wanted, strict=True):
        assert torch.allclose(a, b)


class _Largest(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple) else (out,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return out


def test_never_more_than_one_chunk_of_logits() -> None:
    hidden, labels, head = _case(tokens=64, vocabulary=500)
    saved = []
    with (
        _Largest() as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t),
    ):
        loss = chunked_loss(hidden, (labels,), head, cross_entropy_sum, 8)
        assert max(saved) < 8 * 500  # nothing of a chunk's logits is kept for backward
        loss.backward()
    assert largest.elements <= 8 * 500


def test_the_upcast_is_inside() -> None:
    logits = torch.randn(1, 4, 10).bfloat16()
    labels = torch.tensor([[1, 2, IGNORE, 3]])
    assert cross_entropy_sum(logits, labels).dtype == torch.float32
    assert torch.equal(
        cross_entropy_sum(logits, labels), F.cross_entropy(logits[0].float(), labels[0], reduction="sum")
    )


def test_all_labels_masked_is_zero_with_zero_gradients() -> None:
    hidden, labels, head = _case()
    loss = chunked_loss(hidden, (torch.full_like(labels, IGNORE),), head, cross_entropy_sum, 3)
    loss.backward()
    assert loss.item() == 0 and hidden.grad.abs().max() == 0


def _tiny(model_type: str, **overrides: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=48,
    )
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**shape, **overrides})).eval()


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("qwen3", {}),
        ("granite", {"logits_scaling": 8.0}),
        ("gemma2", {"final_logit_softcapping": 0.5}),
        ("cohere", {"logit_scale": 0.25}),
        ("gpt2", {}),
    ],
)
def test_logits_are_the_models_own(model_type: str, overrides: dict[str, Any]) -> None:
    model = _tiny(model_type, **overrides)
    verify_head(model)
    ids = torch.randint(0, 48, (1, 7))
    with torch.no_grad():
        assert torch.allclose(
            head_of(model)(model.base_model(ids).last_hidden_state), model(ids).logits, atol=1e-6
        )


def test_a_model_that_does_more_to_its_logits_is_refused() -> None:
    model = _tiny("granite", logits_scaling=8.0)
    original = type(model).forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        out.logits = out.logits * 2
        return out

    model.forward = forward.__get__(model)
    with pytest.raises(ValueError, match="does more to its logits"):
        verify_head(model)


def test_the_routers_loss_survives_the_division_by_tokens() -> None:
    model = _tiny(
        "mixtral",
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
        pad_token_id=0,
    )
    ids = torch.randint(0, 48, (1, 12))
    labels = torch.cat([ids[:, 1:], torch.tensor([[IGNORE]])], dim=1)
    with torch.no_grad():
        plain = model(ids)
        expected = F.cross_entropy(plain.logits[0], labels[0], ignore_index=IGNORE) + 0.5 * plain.aux_loss
        install_loss(model, TrainRecipe(scope="none", loss_chunks=2))
        total = model(input_ids=ids, labels=labels, position_ids=torch.arange(12)[None])
    assert total.item() / 11 == pytest.approx(expected.item(), rel=1e-5)
