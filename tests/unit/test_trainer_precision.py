"""Dtypes that cannot be trained in are refused; clipping scales every gradient, and only when they are too long."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.config import TrainConfig
from trainer.optim import clip, gradient_norm
from trainer.program import compute_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("values", [{"dtype": "fp16"}, {"train_dtype": "float16"}])
def test_float16_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"float16 needs a loss that is scaled.*give bfloat16"):
        compute_dtype(TrainConfig(**values), CPU)


def test_the_dtype_of_forward_and_backward() -> None:
    assert compute_dtype(TrainConfig(), CPU) == torch.float32
    assert compute_dtype(TrainConfig(), CUDA) == torch.bfloat16
    assert compute_dtype(TrainConfig(dtype="float32"), CUDA) == torch.float32
    assert compute_dtype(TrainConfig(train_dtype="float64"), CPU) == torch.float64
    assert compute_dtype(TrainConfig(save_dtype="float16"), CPU) == torch.float32


def test_clipping() -> None:
    parameters = [nn.Parameter(torch.zeros(n)) for n in (3, 4, 2)]
    parameters[0].grad, parameters[1].grad = torch.full((3,), 2.0), torch.full((4,), -1.0)
    norm = gradient_norm(parameters)
    assert norm.item() == pytest.approx(4.0)
    clip(parameters, norm, 8.0)
    assert gradient_norm(parameters).item() == pytest.approx(4.0)
    clip(parameters, norm, 1.0)
    assert gradient_norm(parameters).item() == pytest.approx(1.0, rel=1e-5)
    assert parameters[1].grad[0].item() == pytest.approx(-0.25, rel=1e-5)
    clip([parameters[2]], norm, 1.0)
    assert parameters[2].grad is None
