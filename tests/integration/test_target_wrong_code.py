"""Known bugs of torch that compute wrong gradients, found in the code that Inductor generates for a GPU that is not
there, and not found where their workaround is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cftdiag import target
from cftdiag.diagnose.engine.cause import EXAMPLES
from cftdiag.diagnose.wrong_code import ADVISORIES, MIX_ORDER_VIEWS, RANDOM_IN_FOURS, WrongCode
from cftdiag.fastforward import SkipMode, mark_weights
from tests import diagnose_case

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def channel_dropout(x: torch.Tensor) -> torch.Tensor:
    """A dropout that goes through tokens first, as in mixers: transposed there and back in one kernel."""
    return torch.nn.functional.dropout(x.transpose(1, 2).contiguous(), 0.5).transpose(1, 2).contiguous()


class Mixer(torch.nn.Module):
    """Recomputes its dropout, so that the forward keeps no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4096))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(channel_dropout, x * self.weight, use_reentrant=False)  # type: ignore[no-any-return]


class Plain(Mixer):
    """Draws in the order of its kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(torch.nn.functional.dropout, x * self.weight, use_reentrant=False)  # type: ignore[no-any-return]


def lowered(block: torch.nn.Module, x: torch.Tensor, config: Mapping[str, Any]) -> list[WrongCode]:
    found: list[WrongCode] = []
    options = {name.removeprefix("torch._inductor.config."): value for name, value in config.items()}
    with SkipMode():
        mark_weights(block)
        block.compile(backend=target.backend("h200", inductor_config=options, on_wrong_code=found.append))
        block(x.requires_grad_()).sum().backward()
    return found


@pytest.mark.skipif(VERSION < (2, 13), reason="this torch draws random numbers one at a time")
@pytest.mark.parametrize("block, wrong", [(Mixer, True), (Plain, False)])
def test_random_numbers_out_of_order(block: type[Mixer], wrong: bool, fresh_dynamo: None) -> None:
    found = lowered(block(), torch.randn(8, 64, 4096), {})
    assert {f.issue for f in found} == ({RANDOM_IN_FOURS.issue} if wrong else set())
    assert all("dropout" in (f.line.code or "") for f in found)


def test_random_numbers_with_the_workaround(fresh_dynamo: None) -> None:
    assert RANDOM_IN_FOURS.change is not None
    assert lowered(Mixer(), torch.randn(8, 64, 4096), RANDOM_IN_FOURS.change) == []


@pytest.mark.skipif(not (2, 10) <= VERSION < (2, 15), reason="this torch writes through the views")
@pytest.mark.parametrize("mended", [False, True])
def test_views_of_one_buffer(mended: bool, fresh_dynamo: None) -> None:
    block = diagnose_case.load(EXAMPLES / "known_wrong_code.py").Block()
    change = MIX_ORDER_VIEWS.change if mended else {}
    assert change is not None
    found = lowered(block, torch.randn(1, 8192, 1024), change)
    assert [(f.issue, f.backward) for f in found] == ([] if mended else [(MIX_ORDER_VIEWS.issue, True)])


@pytest.mark.everything(
    "two passes and a proof; the patterns stay, and test_diagnose_wrong_code.py has the finding"
)
@pytest.mark.skipif(not (2, 10) <= VERSION < (2, 15), reason="this torch writes through the views")
def test_the_check_names_every_block_and_proves_the_workaround(tmp_path: Path) -> None:
    import cftdiag

    budget = {"timeout": 3600.0, "verify_budget": 3600.0}  # a busy machine leaves nothing unproved
    report = cftdiag.check(f"{EXAMPLES / 'known_wrong_code.py'}:build", target="h200", **budget)
    [finding] = [f for f in report.findings if f.cause == "known_wrong_code"]
    assert finding.blocks == ("layers.*",) and finding.severity == "error" and report.verdict == "not_viable"
    [first, *_] = finding.remedies
    assert first.change == ADVISORIES["pytorch#193061"].change and first.verified
