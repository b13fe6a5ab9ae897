"""Every entry of the catalogue builds on the meta device with exactly its number of parameters."""

from __future__ import annotations

import gc
import warnings

import pytest

from cftdiag import catalogue


def _parameters(entry: catalogue.Entry) -> int:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(entry.model_type, **entry.config)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config)
    # parameters() counts a tied weight once
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module", autouse=True)
def _no_initialisation():
    """Meta tensors hold no values: initialising them is most of the time and none of the result."""
    import torch
    from transformers import PreTrainedModel

    patch = pytest.MonkeyPatch()
    patch.setattr(PreTrainedModel, "init_weights", PreTrainedModel.tie_weights)
    with torch.no_grad():
        yield
    patch.undo()
    gc.collect()


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda e: e.name)
def test_parameter_count(entry: catalogue.Entry) -> None:
    assert _parameters(entry) == entry.params
