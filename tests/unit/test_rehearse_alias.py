"""Devices that are named and not there."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from cftdiag.rehearse.cuda_alias import Alias
from cftdiag.target.devices import DEVICES


class Other(TorchFunctionMode):
    """A mode of the script's own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


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
        assert {t.device.type for t in found} == {"cpu"}
        assert torch.device("cuda", 1).index == 1  # a device is still what it says


def test_mode_steps_aside_from_under_others_and_comes_back() -> None:
    with Alias(DEVICES["h200"]) as alias, Other() as other:
        put_back = alias.off()
        assert _get_current_function_mode_stack() == [other]
        again = alias.off()  # a compiled call inside a compiled call
        again()
        assert _get_current_function_mode_stack() == [other]
        put_back()
        assert _get_current_function_mode_stack() == [alias, other]
