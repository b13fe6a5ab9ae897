"""One model of every architecture of the catalogue ends in a verdict. Depth trace: the forward is captured,
the unrolled backwards of linear attention would take minutes. ``make catalogue`` does all models at depth
joint.
"""

import threading

import pytest

from cftdiag import catalogue
from cftdiag.check.viability import check_one

#: Families that differ in what is compiled: dense, sliding windows, experts, linear attention, old positions.
BY_DEFAULT = {"qwen3", "gemma3_text", "qwen3_moe", "gpt2"}
SEE = pytest.mark.everything(
    "eight architectures stay; the others meet the same code on their own modeling file"
)
#: The first entry of each architecture: a deep and wide one costs no more than a small one, for it is never
#: computed.
MODELS = {entry.model_type: entry.name for entry in reversed(catalogue.entries())}


def test_the_catalogue_is_not_empty():
    assert len(MODELS) > 25


def test_the_default_ones_exist():
    assert set(MODELS) >= BY_DEFAULT


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=[] if name in BY_DEFAULT else SEE) for name in sorted(MODELS)],
)
def test_every_architecture_ends_in_a_verdict(model_type):
    options = {
        "layers": "auto",
        "timeout": 900,
        "local": threading.local(),
        "lengths": (96, 136),
        "depth": "trace",
    }
    row = check_one(MODELS[model_type], "sdpa", **options)
    if row["verdict"] == "refused":
        assert "attention 'sdpa' is not supported" in row["reason"]
        row = check_one(MODELS[model_type], "eager", **options)
    assert row["verdict"] in ("viable", "viable_with_recompiles"), row
    assert row["model_type"] == model_type
    assert sum(row["kinds"].values()) >= 1
    # kinds that differ only beyond these lengths (a sliding window) share a graph; none reaches torch's limit
    assert 1 <= row["compiles"] <= 8
    assert not any("generic_guard" in cause for cause in row["causes"]), row["causes"]
