"""Devices that are named and not there."""

from __future__ import annotations

import torch

from cftdiag.rehearse.cuda_alias import Alias
from cftdiag.target.devices import DEVICES


def test_cuda_in_arguments_is_this_machines_memory() -> None:
    with Alias(DEVICES["h200"]) as alias:
        assert not alias.asked
        ones = torch.ones(2)
        found = [
            torch.zeros(2, device="cuda:1"),
            torch.empty_like(ones, device=torch.device("cuda", 0)),
            ones.to("cuda", non_blocking=True),
            ones.to(device=torch.device("cuda"), dtype=torch.bfloat16),
            ones.cuda(),
            torch.nn.Linear(2, 2).to("cuda").weight,
            torch.nn.Linear(2, 2, device="cuda").cuda().weight,
        ]
        assert alias.asked
        assert {t.device.type for t in found} == {"cuda"}
        assert torch.device("cuda", 1).index == 1  # a device is still what it says
    assert {t.device.type for t in found} == {"cpu"}


def test_tensors_name_the_device_that_the_script_moved_them_to() -> None:
    with Alias(DEVICES["h200"], local=3) as alias:
        here = torch.ones(2)
        assert not here.is_cuda and here.device.type == "cpu"
        there = here.to("cuda")
        assert there.is_cuda and not there.is_cpu and there.device == torch.device("cuda", 3)
        assert there.get_device() == 3
        assert torch.empty(2, device="meta").device.type == "meta"
        # what takes a device from a tensor is mapped again
        assert torch.zeros(2, device=there.device).sum().item() == 0
    assert there.device.type == "cpu" and alias.asked
