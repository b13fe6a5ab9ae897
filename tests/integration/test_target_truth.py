"""The smallest part of ``make truth``: a prediction of ``--target cpu`` against a real training run with
Inductor and g++.
"""

import shutil

import pytest

from tests.truth.compare import differences
from tests.truth.run import run


@pytest.mark.everything(
    "a minute of g++; the comparison itself is in unit/test_target_truth_compare.py, the guard in test_target_native.py"
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler for the real side")
def test_the_prediction_agrees_with_the_real_run():
    predicted, _ = run("predicted", "smallest")
    real, _ = run("real", "smallest")
    assert differences(real, predicted) == []
    # the guard itself, not only that both sides are alike: Inductor's C++ sums more than 4096 elements with
    # another helper
    assert [bool(said) for said in real.recompiles.values()] == [False, True, False]
    assert any("need_use_acc_helper" in line for line in real.recompiles["1 300"])
    assert len(real.guards) == 2
