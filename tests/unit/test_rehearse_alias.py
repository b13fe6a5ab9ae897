"""Devices that are named and not there."""

from __future__ import annotations

import pytest
import torch

from cftdiag.rehearse.cuda_alias import Alias
from cftdiag.target.devices import DEVICES
from cftdiag.torch_private.rehearsal import around_backward


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


def test_what_backward_runs_meets_the_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook, or what a checkpoint recomputes, makes its tensors where the forward did."""
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward)
    x = torch.ones(2, requires_grad=True)
    with Alias(DEVICES["h200"]) as alias:
        around_backward(lambda: alias)
        x.register_hook(lambda gradient: gradient + torch.ones(2, device="cuda"))
        (2 * x).sum().backward()
        torch.autograd.backward(2 * x, torch.ones(2))
    assert x.grad is not None and x.grad.tolist() == [6.0, 6.0]


def test_a_backward_that_makes_a_graph_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced for the target names it; mapped to this machine, one graph would be of two devices."""
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward)
    alias, inside = Alias(DEVICES["h200"]), []
    around_backward(lambda: alias)
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: inside.append(torch.overrides._get_current_function_mode_stack()))
    x.sum().backward()
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        x.sum().backward()
    assert inside == [[alias], []]
