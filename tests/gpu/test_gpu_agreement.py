"""The prediction for a GPU against that GPU, as `make gpu` prints it. Skipped without one."""

from __future__ import annotations

import pytest
import torch

from cftdiag.target import DEVICES
from tests.gpu import agreement

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def target() -> str:
    """The table's name of the device here."""
    name = torch.cuda.get_device_name(0).lower()
    found = next((key for key in DEVICES if key in name), None)
    if found is None:
        pytest.skip(f"no target in the table for {name}")
    return found


def differing(rows):
    return [(row.what, row.differ) for row in rows if row.binding and not row.agrees]


def test_kernels_their_text_and_registers_agree(target):
    rows = agreement.of_reports(*agreement.reports(target))
    assert all(row.of for row in rows)
    assert not differing(rows)


def test_recompiles_and_guards_on_sizes_agree(target):
    rows = agreement.of_logs(*agreement.logs(target))
    assert all(row.of for row in rows)
    assert not differing(rows)
