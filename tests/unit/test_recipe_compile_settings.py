"""The flags of a compiled run that depend on the version of torch."""

from __future__ import annotations

import pytest

from cftdiag.diagnose import CAUSES
from cftdiag.recipe.compile import inductor_settings


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.14.1+cu130"])
def test_a_fusion_that_drops_gradients_is_off_where_it_is_wrong(version: str) -> None:
    assert inductor_settings(version) == {"triton.mix_order_reduction": False}


@pytest.mark.parametrize("version", ["2.15.0", "2.16.0a0+git1", "3.0.0"])
def test_where_it_is_right_it_only_stops_asking(version: str) -> None:
    assert inductor_settings(version) == {"triton.mix_order_reduction_non_strict_mode": True}


def test_no_remedy_widens_a_wrong_fusion_by_itself() -> None:
    changes = [remedy.change or {} for cause in CAUSES.values() for remedy in cause.remedies]
    assert not any("mix_order_reduction_non_strict_mode" in key for change in changes for key in change)
    assert {"torch._inductor.config.triton.mix_order_reduction": False} in changes
