"""Changes that reach a script from outside, and metrics that must not stop it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils import rnn
from torch.utils.data import DataLoader

from cftdiag.rehearse import metrics, remedies
from cftdiag.rehearse.settings import Rehearsal

ROWS = [torch.ones(n) for n in (3, 5, 9)]


@pytest.fixture
def unchanged() -> Iterator[None]:
    from transformers.data import data_collator
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    collators = {cls: cls.__init__ for cls in vars(data_collator).values() if dataclasses.is_dataclass(cls)}
    initialise, sequence = DataLoader.__init__, rnn.pad_sequence
    call, pad = PreTrainedTokenizerBase.__call__, PreTrainedTokenizerBase.pad
    yield
    DataLoader.__init__, rnn.pad_sequence = initialise, sequence  # type: ignore[method-assign]
    PreTrainedTokenizerBase.__call__, PreTrainedTokenizerBase.pad = call, pad
    for cls, own in collators.items():
        cls.__init__ = own


def settings(**changes: Any) -> Rehearsal:
    return Rehearsal(run_dir="", scratch="", **changes)


def test_loaders_drop_their_last_batch_where_they_make_batches(unchanged: None) -> None:
    applied = remedies.install(settings(drop_last=True))
    assert list(DataLoader(ROWS, batch_size=None)) == ROWS and not applied.names
    assert len(DataLoader(ROWS, 2, collate_fn=list)) == 1
    assert applied.names == {"drop_last"}


def test_collators_written_by_hand_pad_further(unchanged: None) -> None:
    applied = remedies.install(settings(pad_to_multiple_of=8))
    rows = rnn.pad_sequence(ROWS, batch_first=True, padding_value=-1.0)
    assert rows.shape == (3, 16) and rows[2, 9:].tolist() == [-1.0] * 7
    assert rnn.pad_sequence(ROWS).shape == (16, 3)
    assert applied.names == {"pad_to_multiple_of"}


def test_collators_and_tokenizers_of_transformers_pad_further(unchanged: None) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, PreTrainedTokenizerFast

    applied = remedies.install(settings(pad_to_multiple_of=8))
    words = Tokenizer(models.WordLevel({"a": 0, "[PAD]": 1}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    assert len(tokenizer("a a a")["input_ids"]) == 3 and not applied.names
    assert len(tokenizer(["a a a", "a"], padding=True)["input_ids"][1]) == 8
    assert applied.names == {"pad_to_multiple_of"}
    rows = [tokenizer("a a a"), tokenizer("a " * 9)]
    assert DataCollatorWithPadding(tokenizer)(rows)["input_ids"].shape == (2, 16)
    labelled = [{"input_ids": [0, 0], "labels": [0, 0]}, {"input_ids": [0], "labels": [0]}]
    assert DataCollatorForSeq2Seq(tokenizer)(labelled)["labels"].shape == (2, 8)


def test_inputs_of_a_compiled_call_require_gradients_while_any_are_taken() -> None:
    applied = remedies.Applied()
    call = remedies.with_gradients(lambda x, ids: x.requires_grad, applied)
    with torch.no_grad():
        assert not call(torch.ones(2), torch.arange(2)) and not applied.names
    assert call(torch.ones(2), torch.arange(2)) and applied.names == {"input_requires_grad"}


def test_configuration_is_changed_where_it_has_the_field() -> None:
    applied, config = remedies.Applied(), types.SimpleNamespace(dropout=0.1)
    remedies.configured(config, settings(model_config={"dropout": 0.0, "other": 1}), applied)
    assert config == types.SimpleNamespace(dropout=0.0) and applied.names == {"model_config"}


def test_metrics_fall_and_stop_no_library() -> None:
    values = [metrics.plausible(step) for step in range(1000)]
    assert values == sorted(values, reverse=True) and 0 < values[-1] < values[0] < 1

    @dataclasses.dataclass
    class Control:
        should_training_stop: bool = False

    class EarlyStoppingCallback:
        early_stopping_patience_counter = 0

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.early_stopping_patience_counter += 1
            control.should_training_stop = self.early_stopping_patience_counter >= 2

    stops = metrics.Stops(lambda: 7)
    module: Any = types.SimpleNamespace(EarlyStoppingCallback=EarlyStoppingCallback)
    metrics._transformers(stops, module)
    callback, control = EarlyStoppingCallback(), Control()
    for _ in range(3):
        callback.on_evaluate(None, None, control)
    assert not control.should_training_stop
    (note,) = stops.notes()
    assert note.startswith("EarlyStoppingCallback would have stopped the training after step 7")
