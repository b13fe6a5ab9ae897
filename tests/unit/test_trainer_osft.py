"""OSFT's mathematics against a plain dense reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cftdiag.recipe.blocks import find_blocks
from trainer.config import TrainConfig
from trainer.methods.method import Known
from trainer.osft import surgery
from trainer.osft.coverage import coverage
from trainer.osft.frozen import Frozen
from trainer.osft.leak import leak, update_leak
from trainer.osft.linear import OSFTLinear, compose, decompose
from trainer.osft.projection import project_gradients, project_parameters
from trainer.osft.ranks import adaptive, by_target, high_rank
from trainer.program import apply_method
from trainer.targets import find_targets

F64 = torch.float64


def _layer(
    rows: int = 12, columns: int = 20, high: int = 7, seed: int = 0
) -> tuple[OSFTLinear, torch.Tensor]:
    weight = torch.randn(rows, columns, dtype=F64, generator=torch.Generator().manual_seed(seed))
    layer = OSFTLinear(columns, rows, high=high, bias=True, dtype=F64, device="cpu")
    with torch.no_grad():
        for name, value in decompose(weight, high, upcast=F64).items():
            getattr(layer, name).copy_(value)
        layer.bias.normal_(generator=torch.Generator().manual_seed(1))
    return layer, weight


def _tiny(model_type: str, **overrides: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=48,
    )
    if model_type == "gpt2":
        shape = dict(n_embd=16, n_layer=2, n_head=2, vocab_size=48, n_positions=32)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **{**shape, **overrides}), dtype=F64
    ).eval()


@pytest.mark.parametrize("high", [1, 7, 11])
def test_factors_stand_for_the_weight(high: int) -> None:
    layer, weight = _layer(high=high)
    assert torch.allclose(compose(dict(layer.named_parameters()), upcast=F64), weight, atol=1e-13)
    x = torch.randn(3, 5, 20, dtype=F64)
    assert torch.allclose(layer(x), nn.functional.linear(x, weight, layer.bias), atol=1e-12)


def test_only_the_low_factors_and_the_bias_are_trained() -> None:
    layer, _ = _layer()
    assert {n for n, p in layer.named_parameters() if p.requires_grad} == {"U_low", "S_low", "V_low", "bias"}
    assert [layer.U_high.shape[1], layer.U_low.shape[1]] == [7, 5]
    assert layer.S_high.min() >= layer.S_low.max()


@pytest.mark.parametrize("cap", [1, 300, 2**20])
def test_projection_is_the_dense_formula_for_any_bucket_size(cap: int) -> None:
    layers = [_layer(seed=0)[0], _layer(8, 6, 3, seed=1)[0]]
    for layer in layers:
        layer(torch.randn(4, layer.V_high.shape[1], dtype=F64)).square().sum().backward()
    expected = []
    for layer in layers:
        du, dv, uh, vh = layer.U_low.grad, layer.V_low.grad, layer.U_high, layer.V_high
        expected.append((du - uh @ (uh.T @ du), dv - (dv @ vh.T) @ vh, layer.S_low.grad.clone()))
    project_gradients(Frozen(layers, cap_bytes=cap))
    for layer, (du, dv, ds) in zip(layers, expected, strict=True):
        assert torch.allclose(layer.U_low.grad, du, atol=1e-13)
        assert torch.allclose(layer.V_low.grad, dv, atol=1e-13)
        assert torch.equal(layer.S_low.grad, ds)


def test_adam_leaks_without_projecting_the_parameters() -> None:
    leaks = {}
    for project in (False, True):
        layer, weight = _layer()
        frozen = Frozen([layer], cap_bytes=2**20)
        optimizer = torch.optim.AdamW([p for p in layer.parameters() if p.requires_grad], lr=1e-2)
        x = torch.randn(16, 20, dtype=F64, generator=torch.Generator().manual_seed(2))
        for _ in range(10):
            layer(x).sin().sum().backward()
            project_gradients(frozen)
            optimizer.step()
            optimizer.zero_grad()
            if project:
                project_parameters(frozen)
        after = compose(dict(layer.named_parameters()), upcast=F64)
        leaks[project] = (leak(frozen).item(), update_leak(weight, after, layer.U_high, layer.V_high))
    assert max(leaks[True]) < 1e-13
    assert min(leaks[False]) > 1e-3


@pytest.mark.parametrize("factor", ["U_low", "V_low"])
def test_a_leak_of_one_percent_spread_over_all_directions_is_seen(factor: str) -> None:
    layer, _ = _layer(64, 96, 48)
    frozen = Frozen([_layer(seed=3)[0], layer], cap_bytes=2**20)
    assert leak(frozen) < 1e-14
    with torch.no_grad():
        low = getattr(layer, factor)
        noise = (
            layer.U_high @ torch.randn(48, 16, dtype=F64)
            if factor == "U_low"
            else torch.randn(16, 48, dtype=F64) @ layer.V_high
        )
        low += 0.01 * low.norm() / noise.norm() * noise
    assert leak(frozen).item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("ratio", "high"), [(1.0, 0), (0.0, 64), (0.25, 48), (0.7, 19), (0.999, 1), (0.001, 63)]
)  # 64 * (1 - 0.7) is 19.2; 1 - 0.999 would freeze none, 1 - 0.001 all
def test_rank_of_a_ratio(ratio: float, high: int) -> None:
    assert high_rank(64, 160, ratio) == high


def test_unfreeze_one_leaves_a_plain_linear_and_zero_a_frozen_one() -> None:
    model = _tiny("qwen3")
    surgery.split_and_decompose(
        model, surgery.plan(model, {n: 1.0 if "q_proj" in n else 0.0 for n in find_targets(model)})
    )
    assert not any(isinstance(m, OSFTLinear) for m in model.modules())
    assert all(m.weight.requires_grad == ("q_proj" in n) for n, m in find_targets(model).items())
    assert model.lm_head.weight.requires_grad


@pytest.mark.parametrize("model_type", ["qwen3", "llama", "phi3", "gpt2", "gemma2", "granite"])
def test_a_split_model_computes_the_same_and_comes_back(model_type: str) -> None:
    model = _tiny(model_type, **({"pad_token_id": 0} if model_type == "phi3" else {}))
    ids = torch.randint(0, 48, (1, 9))
    before = model(ids).logits
    targets = surgery.plan(model, 0.25)
    assert len(targets) == len(find_targets(model)) >= 8
    surgery.split_and_decompose(model, targets, upcast=F64)
    assert sum(isinstance(m, OSFTLinear) for m in model.modules()) == len(targets)
    assert torch.allclose(model(ids).logits, before, atol=1e-10)
    with pytest.raises(ValueError, match="no Linear"):
        surgery.plan(model, 0.25)  # names have changed: a second decomposition must restore first
    assert len(surgery.restore(model, upcast=F64)) == len(targets)
    assert torch.allclose(model(ids).logits, before, atol=1e-10)
    assert len(surgery.plan(model, 0.5)) == len(targets)


def test_unknown_targets_name_the_candidates() -> None:
    with pytest.raises(
        ValueError,
        match="no Linear of 'qwen3' matches foo; give target patterns out of: down_proj, gate_proj",
    ):
        surgery.plan(_tiny("qwen3"), 0.25, ("foo",))


def test_adaptive_ranks_keep_the_mean_and_follow_importance() -> None:
    ratios = adaptive([0.8, 1.0, 1.2], 0.25)
    assert sum(ratios) / 3 == pytest.approx(0.25)
    assert ratios == sorted(ratios, reverse=True)
    assert adaptive([0.4, 0.4], 0.25) == pytest.approx([0.25, 0.25])
    assert all(0 <= r <= 1 for r in adaptive([0.1, 5.0], 0.25))
    many = adaptive([0.8 + i / 100 for i in range(40)], 0.25)
    assert len(set(many)) == 3 and sum(many) / 40 == pytest.approx(0.25)
    assert many == sorted(many, reverse=True), "more importance, fewer trained directions"
    assert by_target(["layers.1.q", "layers.10.q"], ["layers.1", "layers.10"], [0.1, 0.2]) == {
        "layers.1.q": 0.1,
        "layers.10.q": 0.2,
    }


FAMILIES = (
    *(
        "qwen3_moe",
        "mixtral",
        "gpt_oss",
        "olmoe",
        "granitemoe",
        "glm4_moe",
        "deepseek_v2",
        "lfm2",
        "gptj",
        "gpt_neo",
    ),
    *(
        "codegen",
        "nemotron_h",
        "qwen3_5_text",
        "mpt",
        "jetmoe",
        "llama4_text",
        "qwen3",
        "phi3",
        "gpt2",
        "falcon_h1",
    ),
)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_nearly_all_of_the_blocks_is_covered_in_every_family(model_type: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    targets = surgery.plan(model, 0.25)
    found = coverage(model, dict(find_blocks(model)), targets)
    assert found.share > 0.98, found.lines()
    everything = sum(p.numel() for p in model.parameters())
    assert found.covered + sum(found.inside.values()) + sum(found.outside.values()) == everything
    assert not any("router" in t.name or t.name.endswith(".gate") for t in targets)


def test_what_is_not_covered_is_said() -> None:
    model = _tiny("qwen3")
    blocks = list(dict(find_blocks(model)))
    targets = surgery.plan(model, 0.25, ("q_proj", "up_proj"))
    before = coverage(model, blocks, targets)
    surgery.split_and_decompose(model, targets)
    found = coverage(model, blocks, targets)
    assert found == before, "the same of the factored model"
    assert found.covered == 2 * (16 * 16 + 16 * 24)
    first, outside, warning = found.lines()
    assert first.startswith(
        f"OSFT covers {found.share:.1%} of the parameters in the blocks; trained in full there: "
    )
    assert (
        "mlp.down_proj.weight" in first and "embed_tokens.weight" in outside and "lm_head.weight" in outside
    )
    assert warning.startswith("warning: OSFT protects only") and "--osft-target-patterns" in warning
    assert len(coverage(_tiny("qwen3"), blocks, surgery.plan(_tiny("qwen3"), 0.25)).lines()) == 2


def test_what_is_trained_beside_the_targets_is_chosen_and_said() -> None:
    def trained(beside: str) -> tuple[set[str], list[str]]:
        model = _tiny("qwen3")
        blocks = list(dict(find_blocks(model)))
        targets = surgery.plan(model, 0.25, (), ("q_proj=1", "k_proj=0"))
        surgery.split_and_decompose(model, targets)
        surgery.freeze_beside(model, targets, blocks, beside)
        names = {name for name, p in model.named_parameters() if p.requires_grad}
        return names, coverage(model, blocks, targets).lines()

    everything, lines = trained("all")
    outer = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert outer < everything and "OSFT protects nothing" in lines[1]
    inside, lines = trained("blocks")
    assert inside == everything - outer
    assert lines[1].startswith("frozen outside of the blocks: ") and "lm_head.weight" in lines[1]
    factors, lines = trained("none")
    assert factors == {n for n in inside if n.endswith(("_low", "q_proj.weight"))}
    assert "input_layernorm" not in lines[0] and "q_proj.weight" in lines[0]


def test_every_pattern_must_match() -> None:
    with pytest.raises(
        ValueError, match="matches upp_proj; give target patterns out of: down_proj, gate_proj"
    ):
        surgery.plan(_tiny("qwen3"), 0.25, ("q_proj", "upp_proj"))
    moe = _tiny("qwen3_moe", **MOE)
    assert {t.name.rpartition(".")[2] for t in surgery.plan(moe, 0.25, ("down_proj",))} == {"down_proj"}
    assert not surgery.plan(moe, 0.25, ("q_proj",))[0].experts


def test_ratios_by_pattern() -> None:
    targets = surgery.plan(_tiny("qwen3"), 0.25, (), ("mlp=0.5", "layers.1.mlp=0", "up_proj=1"))
    high = {t.name.removeprefix("model.layers."): t.high for t in targets}
    assert (high["0.self_attn.q_proj"], high["0.mlp.gate_proj"], high["1.mlp.gate_proj"]) == (12, 8, 16)
    assert high["0.mlp.up_proj"] == high["1.mlp.up_proj"] == 0, "the last that fits counts"
    with pytest.raises(ValueError, match="no target's name contains 'mpl'"):
        surgery.plan(_tiny("qwen3"), 0.25, (), ("mpl=0.5",))
    for text in ("mlp", "mlp=", "mlp=x", "=0.5", "mlp=1.5", "mlp=nan"):
        with pytest.raises(ValueError, match="PATTERN=RATIO"):
            surgery.plan(_tiny("qwen3"), 0.25, (), (text,))


MOE = {"moe_intermediate_size": 12, "num_experts": 3, "num_experts_per_tok": 2, "num_local_experts": 3}


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss", "mixtral", "granitemoe"])
def test_a_split_moe_computes_the_same_trains_and_comes_back(model_type: str) -> None:
    model = _tiny(model_type, **MOE)
    model.set_experts_implementation("eager")  # torch's grouped product takes no float64
    ids = torch.randint(0, 48, (1, 9), generator=torch.Generator().manual_seed(0))
    before = model(ids).logits
    plain = {name: p.detach().clone() for name, p in model.named_parameters()}
    targets = surgery.plan(model, 0.25)
    experts = [t for t in targets if t.experts]
    assert len(experts) == 4 and all(t.experts == 3 for t in experts)
    surgery.split_and_decompose(model, targets, upcast=F64)
    assert torch.allclose(model(ids).logits, before, atol=1e-10)
    assert not any(name in dict(model.named_parameters()) for name in (t.source for t in targets))
    kinds = {type(model.get_submodule(t.name.rpartition(".")[0])) for t in experts}
    assert len(kinds) == 1, "layers share a class, and so a graph"

    frozen = Frozen.of(model, cap_bytes=300)
    assert frozen is not None and len(frozen.experts) == 4
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(5):
        model(ids).logits.square().sum().backward()
        project_gradients(frozen)
        optimizer.step()
        optimizer.zero_grad()
        project_parameters(frozen)
    assert leak(frozen) < 1e-12
    layer = frozen.experts[0]
    after = compose(dict(layer.named_parameters()), upcast=F64)
    old = plain[experts[0].name]
    for e in range(3):
        if not torch.equal(after[e], old[e]):
            assert update_leak(old[e], after[e], layer.U_high[e], layer.V_high[e]) < 1e-10
    assert not torch.allclose(after, old)
    with torch.no_grad():
        noise = layer.U_high[2] @ torch.randn(layer.U_high.shape[2], layer.U_low.shape[2], dtype=F64)
        layer.U_low[2] += 0.01 * layer.U_low.norm() / noise.norm() * noise
    assert leak(frozen).item() == pytest.approx(0.01, rel=1e-2), "of one expert"

    trained = model(ids).logits
    assert len(surgery.restore(model, upcast=F64)) == len(targets)
    assert torch.allclose(model(ids).logits, trained, atol=1e-10)
    assert {name for name, _ in model.named_parameters()} == set(plain)


def test_a_checkpoint_or_a_rank_of_another_model_is_named() -> None:
    model = _tiny("qwen3")
    ranks = {t.name: t.high for t in surgery.plan(model, 0.25)}
    name = "model.layers.0.self_attn.q_proj"
    with pytest.raises(
        ValueError, match=f"of another model: it has 99 frozen directions of {name}, which has 16"
    ):
        apply_method(model, TrainConfig(demo=True, osft=True), Known(ranks={**ranks, name: 99}))
    with pytest.raises(ValueError, match="other OSFT targets than this model"):
        apply_method(model, TrainConfig(demo=True, osft=True), Known(ranks={name: 4}))
    with pytest.raises(ValueError, match="lora-rank 17 is above 16, the rank of the largest target"):
        apply_method(model, TrainConfig(demo=True, lora=True, lora_rank=17))
    apply_method(model, TrainConfig(demo=True, lora=True, lora_rank=16))
