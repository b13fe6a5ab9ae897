"""Flash and flex attention are checked on transformers' own path, with stand-ins only for what this machine
lacks.
"""

import pytest
import torch
import torch._dynamo as dynamo
import torch.nn.attention.flex_attention as torch_flex
import torch.nn.functional as F

from cftdiag.fastforward import STATS, Graph, SkipMode, fast_forward, reset, trace_only
from cftdiag.recipe import (
    DepthNotReached,
    apply_recipe,
    build_model,
    find_blocks,
    flash_standins,
    flex_on_cpu,
    make_batches,
)
from cftdiag.recipe.flash_kernels import flash_attention, flash_attention_varlen

TINY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 90, "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip
GPT_OSS = TINY | {
    "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh():
    dynamo.reset()
    reset()
    torch.set_num_threads(1)


@pytest.fixture
def targets(monkeypatch):
    """Operators of every graph that is compiled."""
    seen = []
    init = Graph.__init__

    def keep(self, gm, kind):
        seen.append([str(n.target) for n in gm.graph.nodes])
        init(self, gm, kind)

    monkeypatch.setattr(Graph, "__init__", keep)
    return seen


def run(config, attn, *, backend=fast_forward, fullgraph=True, lengths=(150, 170, 301), **batches):
    model = build_model(config, attn=attn)
    with SkipMode():
        program = apply_recipe(
            model,
            find_blocks(model),
            compile=lambda m, name: m.compile(backend=backend, dynamic=True, fullgraph=fullgraph),
        )
        for batch in make_batches(model.config, lengths=lengths, model=model, **batches):
            program.step(batch.kwargs)
            assert all(p.grad is not None for p in model.parameters())
            program.zero_grad()
    return model


def test_a_model_file_that_imports_the_kernels_call_only_with_a_kernel_gets_it():
    falcon = {
        "model_type": "falcon",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 90,
        "alibi": False,
    }
    model = build_model(falcon, attn="flash_attention_2")
    [batch] = make_batches(model.config, lengths=(30,), model=model)
    with SkipMode():
        assert model(**batch.kwargs).loss.shape == ()


def test_flash_attention_breaks_at_the_packed_sequence_test():
    with pytest.raises(dynamo.exc.Unsupported, match="_is_packed_sequence"):
        run(TINY, "flash_attention_2", lengths=(30,))


@pytest.mark.parametrize(
    "attn, packed", [("flash_attention_2", False), ("flash_attention_2", True), ("flash_attention_3", True)]
)
def test_variable_length_arguments_capture_whole(attn, packed, targets):
    run(TINY, attn, packed=packed, flash_varlen=True)
    assert STATS["fwd"] == STATS["bwd"] == 1
    assert any("cftdiag.flash_attention_varlen.default" in t for t in targets[0])
    assert any("cftdiag.flash_attention_varlen_backward" in t for t in targets[1])


@pytest.mark.everything("20 s; variable lengths by argument stay, and the break at the test for packed rows")
def test_after_the_break_packed_rows_take_the_variable_length_path(targets):
    run(TINY, "flash_attention_2", fullgraph=False, packed=True, lengths=(90,))
    assert any("flash_attention_varlen" in t for graph in targets for t in graph)
    dynamo.reset()
    targets.clear()
    run(TINY, "flash_attention_2", fullgraph=False, lengths=(90,))
    assert not any("flash_attention_varlen" in t for graph in targets for t in graph)
    assert any("cftdiag.flash_attention.default" in t for graph in targets for t in graph)


@pytest.mark.everything("12 s; variable lengths reach their kernels in `make test`")
def test_attention_sinks_reach_the_kernel_that_the_model_asks_for(targets):
    model = run(GPT_OSS, "flash_attention_3", flash_varlen=True, lengths=(40,))
    assert model.config._attn_implementation == "kernels-community/vllm-flash-attn3"
    assert any("flash_attention_varlen" in t for t in targets[0])


@pytest.mark.parametrize("attn", ["flash_attention_2", "flash_attention_3"])
@pytest.mark.parametrize("varlen", [False, True])
def test_stand_ins_compute_what_sdpa_computes_on_a_packed_row(attn, varlen):
    def loss_and_gradients(attn, **batches):
        model = build_model(TINY, attn=attn, weights=True)
        (batch,) = make_batches(model.config, lengths=(60,), packed=True, model=model, **batches)
        loss = model(**batch.kwargs).loss
        loss.backward()
        return loss, [p.grad.float() for p in model.parameters()]

    loss, gradients = loss_and_gradients("sdpa")
    other_loss, others = loss_and_gradients(attn, flash_varlen=varlen)
    torch.testing.assert_close(other_loss, loss, atol=2e-2, rtol=2e-2)
    for a, b in zip(others, gradients, strict=True):
        assert F.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.99


def test_kernel_semantics():
    q, k, v = (torch.randn(2, n, h, 8, dtype=torch.bfloat16) for n, h in ((6, 4), (6, 2), (6, 2)))
    mask = torch.ones(6, 6, dtype=torch.bool).tril() & ~torch.ones(6, 6, dtype=torch.bool).tril(-3)
    expected = F.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask, enable_gqa=True
    ).transpose(1, 2)
    out, lse = flash_attention(q, k, v, 8**-0.5, True, 2, 0, 0.0)
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)
    assert lse.shape == (2, 4, 6) and lse.dtype == torch.float32
    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        flash_attention(q.float(), k.float(), v.float(), 1.0, True, -1, -1, 0.0)
    ends = torch.tensor([0, 2, 6], dtype=torch.int32)
    arguments = (q[0], k[0], v[0], ends, ends, 4, 4, 8**-0.5, True, -1, -1, 0.0)
    split = [
        F.scaled_dot_product_attention(
            *(t[0, a:b].transpose(0, 1) for t in (q, k, v)), is_causal=True, enable_gqa=True
        )
        for a, b in ((0, 2), (2, 6))
    ]
    torch.testing.assert_close(
        flash_attention_varlen(*arguments)[0], torch.cat(split, 1).transpose(0, 1), atol=2e-2, rtol=2e-2
    )
    torch.library.opcheck(flash_attention_varlen, arguments, test_utils=("test_schema", "test_faketensor"))


def test_flash_stand_ins_end_with_their_context():
    import transformers.modeling_flash_attention_utils as utils

    flash_standins._installed.close()
    load = utils._lazy_imports
    with flash_standins.stand_ins():
        assert utils._lazy_imports is not load
        assert utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]["general_availability_check"]()
    assert utils._lazy_imports is load
    assert not utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]["general_availability_check"]()


@pytest.mark.parametrize(
    "packed", [pytest.param(False, marks=pytest.mark.everything("9 s; packed rows stay")), True]
)
def test_flex_operator_is_in_both_graphs(packed, targets):
    run(TINY, "flex_attention", packed=packed, lengths=(150, 170))
    assert STATS["fwd"] == STATS["bwd"] == 1
    assert "flex_attention" in targets[0] and "flex_attention_backward" in targets[1]


@pytest.mark.everything("10 s; the plain operator stays")
def test_flex_attention_with_sinks_and_windows(targets):
    run(GPT_OSS, "flex_attention", lengths=(150,))
    assert any("flex_attention" in graph for graph in targets)


def test_flex_attention_at_depth_trace():
    run(TINY, "flex_attention", backend=trace_only, lengths=(150,))
    assert STATS["fwd"] == 1


def test_flex_limits_of_a_cpu_are_not_the_models(monkeypatch):
    flex_on_cpu._installed.close()
    monkeypatch.delattr(torch_flex, "_validate_device")
    with pytest.raises(DepthNotReached, match="FlexAttention's backward without a GPU") as limit:
        build_model(TINY, attn="flex_attention")
    assert limit.value.depth == "joint" and limit.value.left is None
