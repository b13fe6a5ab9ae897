"""Batches have real ids and positions; packed ones restart."""

import pytest
import torch

from cftdiag.recipe import build_model, load_config, make_batches, max_positions

CONFIG = load_config(
    {"model_type": "qwen3", "vocab_size": 50, "max_position_embeddings": 100, "pad_token_id": 7}
)


def test_plain():
    first, second = make_batches(CONFIG, lengths=(10, 12), batch_size=3)
    assert (first.batch_size, first.length, first.documents) == (3, 10, (10, 10, 10))
    assert (
        second.kwargs["input_ids"].shape
        == second.kwargs["labels"].shape
        == second.kwargs["position_ids"].shape
        == (3, 12)
    )
    assert torch.equal(second.kwargs["position_ids"], torch.arange(12).expand(3, 12))
    labels = first.kwargs["labels"]  # the next token of each position, as the trainer's batches have it
    assert torch.equal(labels[:, :-1], first.kwargs["input_ids"][:, 1:]) and (labels[:, -1] == -100).all()
    ids = torch.cat([b.kwargs["input_ids"].flatten() for b in make_batches(CONFIG, lengths=(100,) * 20)])
    assert ids.min() == 0 and ids.max() == 49 and not (ids == 7).any()


def test_reproducible_by_seed():
    again = [make_batches(CONFIG, lengths=(20,), seed=seed)[0].kwargs["input_ids"] for seed in (1, 1, 2)]
    assert torch.equal(again[0], again[1]) and not torch.equal(again[0], again[2])


def test_packed():
    (batch,) = make_batches(CONFIG, lengths=(90,), packed=True)
    assert batch.documents == (32, 30, 18, 10) and sum(batch.documents) == batch.length == 90
    positions, labels = batch.kwargs["position_ids"][0], batch.kwargs["labels"][0]
    starts = (positions == 0).nonzero().flatten().tolist()
    assert starts == [0, 32, 62, 80]
    ends = [*(start - 1 for start in starts[1:]), batch.length - 1]
    assert (labels == -100).nonzero().flatten().tolist() == ends
    assert make_batches(CONFIG, lengths=(1,), packed=True)[0].documents == (1,)


@pytest.mark.parametrize("packed, ends", [(True, [0, 32, 62, 80, 90]), (False, [0, 90])])
def test_varlen_arguments(packed, ends):
    (batch,) = make_batches(CONFIG, lengths=(90,), packed=packed, flash_varlen=True)
    for side in "qk":
        assert batch.kwargs[f"cu_seq_lens_{side}"].tolist() == ends
        assert batch.kwargs[f"cu_seq_lens_{side}"].dtype == torch.int32
        longest = batch.kwargs[f"max_length_{side}"]
        assert type(longest) is int and longest == max(batch.documents)


def test_arguments_a_forward_does_not_take_are_left_out():
    class Model(torch.nn.Module):
        def forward(self, input_ids, labels=None):
            return input_ids

    assert set(make_batches(CONFIG, lengths=(4,), model=Model())[0].kwargs) == {"input_ids", "labels"}
    model = build_model(CONFIG, layers=1)
    assert "cu_seq_lens_q" in make_batches(CONFIG, lengths=(4,), flash_varlen=True, model=model)[0].kwargs


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lengths": ()}, "no lengths"),
        ({"lengths": (5, 0)}, "length 0 is not a positive"),
        ({"lengths": (-3,)}, "length -3 is not"),
        ({"lengths": (2.5,)}, "length 2.5 is not"),
        ({"lengths": (5, 101)}, "length 101 is beyond the 100 positions"),
        ({"batch_size": 0}, "batch size 0"),
        ({"packed": True, "batch_size": 2, "lengths": (9,)}, "cannot be packed"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        make_batches(CONFIG, **options)


def test_limits_by_architecture():
    assert max_positions(load_config({"model_type": "gpt2"})) == 1024
    assert max_positions(load_config({"model_type": "mamba"})) is None
