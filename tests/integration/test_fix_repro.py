"""A repro of a finding is a program of plain torch that shows it, and shows nothing once it is mended."""

import ast

import pytest

from cftdiag.diagnose import CAUSES
from cftdiag.fix.repro import repros
from tests.unit.check_samples import not_viable


def _checked(kind, cause, guard, blocks=("layers.0", "layers.1")):
    data = not_viable()
    data["subject"].update(type="file", compile_kwargs={})
    data["blocks"] = [{**data["blocks"][0], "fqn": name} for name in blocks]
    data["findings"] = [{**data["findings"][0], "kind": kind, "cause": cause, "guard": guard}]
    return data


LENGTHS = """
import cftdiag
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x)

def build():
    model = torch.nn.Sequential(Block(), Block())
    batches = [{"input": torch.randn(2, n, 8, requires_grad=True)} for n in (5, 6)]
    return cftdiag.Subject(model=model, batches=batches)
"""


def test_a_recompile_is_shown_and_is_gone_when_mended(warm):
    data = _checked(
        "recompile", "seq_len", "tensor 'x' size mismatch at index 1. expected 5, actual 6", ("0", "1")
    )
    [(name, text)] = repros(data, LENGTHS).items()
    assert name == "repro_1_seq_len.py"
    done = warm.run(text, check=False)
    assert done.returncode == 1 and "size mismatch at index 1. expected 5, actual 6" in done.stdout
    data["subject"]["compile_kwargs"] = {"dynamic": True}
    [text] = repros(data, LENGTHS).values()
    assert warm.run(text, check=False).returncode == 0


def test_another_recompile_on_the_way_is_let_happen(warm):
    """The second block sees a gradient that the first does not: no fault of the lengths."""
    source = LENGTHS.replace(", requires_grad=True", "")
    data = _checked(
        "recompile", "seq_len", "tensor 'x' size mismatch at index 1. expected 5, actual 6", ("0", "1")
    )
    [text] = repros(data, source).values()
    done = warm.run(text, check=False)
    assert done.returncode == 1
    first, second = done.stdout.split("step 2: ")
    assert "requires_grad mismatch" in first and "size mismatch at index 1" not in first
    assert "size mismatch at index 1. expected 5, actual 6" in second


def test_a_break_is_shown(warm):
    data = _checked("graph_break", "tensor.item", None)
    [text] = repros(data, CAUSES["tensor.item"].example).values()
    done = warm.run(text, check=False)
    assert done.returncode == 1 and "graph break" in done.stdout.lower(), done.stdout + done.stderr


def test_what_only_a_device_or_several_ranks_show_has_none():
    assert repros(_checked("recompile", "inductor_size_regime", None), "def build(): ...\n") == {}
    assert repros(_checked("perf", "cache_miss", None), "def build(): ...\n") == {}


@pytest.mark.parametrize("hostile", ['"""', "\\", "\x1b]0;x\x07", "\ud800", "{x}", "a\nb"])
def test_no_text_of_a_finding_gets_out_of_the_docstring(hostile):
    data = _checked("error", "fullgraph_error", hostile)
    data["findings"][0]["explanation"] = hostile
    [text] = repros(data, "def build():\n    return 1, 2\n").values()
    tree = ast.parse(text.encode("utf-8", "backslashreplace"))
    assert ast.get_docstring(tree).startswith("error fullgraph_error")


def test_a_published_model_is_made_small():
    data = not_viable()
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "vocab_size": 151936,
        "hidden_size": 64,
        "bos_token_id": 1,
    }
    texts = repros(data, None, config)
    assert len(texts) == 2
    for text in texts.values():
        ast.parse(text)
        assert "'num_hidden_layers': 2" in text and "bos_token_id" not in text and "cftdiag" not in text
        assert "for name in ['model.layers.0', 'model.layers.1']" in text
