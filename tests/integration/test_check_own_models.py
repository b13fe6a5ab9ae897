"""Models that are not the catalogue's: code that comes with a directory, a build() that asks for kernels
which are not installed.
"""

import json

import pytest

from cftdiag.check import InputError
from cftdiag.check.driver import run_check
from cftdiag.options import CheckOptions

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 300,
}  # fmt: skip

MODELING = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own_of_the_test"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)
"""


@pytest.fixture
def directory(tmp_path):
    model = tmp_path / "own_model"
    model.mkdir()
    (model / "modeling_own.py").write_text(MODELING)
    auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (model / "config.json").write_text(
        json.dumps(SIZES | {"model_type": "own_of_the_test", "auto_map": auto_map})
    )
    return model


def test_code_of_a_directory_runs_when_it_is_trusted(directory):
    report = run_check(
        CheckOptions(model=str(directory), trust_remote_code=True, lengths=(24, 40), verify=False)
    )
    assert report.verdict == "viable", report.findings
    assert report.subject["model_class"] == "OwnForCausalLM"
    assert [b.cls for b in report.blocks] == ["LlamaDecoderLayer"] * 2


def test_code_of_a_directory_is_refused_with_the_flag_that_allows_it(directory):
    with pytest.raises(
        InputError, match=r"model_type 'own_of_the_test' is unknown .*: pass --trust-remote-code"
    ):
        run_check(CheckOptions(model=str(directory), lengths=(24,)))


def test_code_of_a_directory_that_raises_is_a_mistake_of_the_user(directory):
    config = json.loads((directory / "config.json").read_text())
    config["auto_map"]["AutoModelForCausalLM"] = "broken.OwnForCausalLM"
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "broken.py").write_text("raise SystemExit(5)\n")
    with pytest.raises(InputError, match="own_model: the code that comes with it raised SystemExit: 5"):
        run_check(CheckOptions(model=str(directory), trust_remote_code=True, lengths=(24,)))


BUILD = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM

def model(attn):
    config = AutoConfig.for_model("qwen3", use_cache=False, **SIZES)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attn)

def batches(**more):
    return [{"input_ids": torch.randint(0, 300, (1, n)), **{k: f(n) for k, f in more.items()}} for n in (24, 40)]

def varlen():
    ends = lambda n: torch.tensor([0, n // 2, n], dtype=torch.int32)
    more = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": lambda n: n // 2, "max_length_k": lambda n: n // 2}
    more["position_ids"] = lambda n: torch.arange(n)[None] % (n // 2)
    return model("flash_attention_2"), batches(**more)

def flex():
    return model("flex_attention"), batches()
"""


@pytest.mark.parametrize(
    "attention",
    [
        "varlen",
        pytest.param("flex", marks=pytest.mark.everything("10 s; another kernel that is not here stays")),
    ],
)
def test_build_may_ask_for_a_kernel_that_is_not_installed(tmp_path, attention):
    path = tmp_path / "own.py"
    path.write_text(BUILD.replace("SIZES", repr(SIZES)))
    report = run_check(CheckOptions(model=f"{path}:{attention}", verify=False))
    assert report.verdict in ("viable", "viable_with_recompiles"), report.findings
    assert [b.fullgraph for b in report.blocks] == [True, True]


TWO_STACKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.ModuleList(Block() for _ in range(4))
        self.used = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.used:
            x = block(x)
        return x

class Idle(Model):
    def forward(self, x):
        return self.used[0].linear(x)

def build():
    return Model(), [{"x": torch.randn(2, n, 8, requires_grad=True)} for n in (5, 7)]

def idle():
    return Idle(), [{"x": torch.randn(2, 5, 8, requires_grad=True)}]
"""


def test_the_stack_that_the_step_calls_is_checked(tmp_path):
    path = tmp_path / "two.py"
    path.write_text(TWO_STACKS)
    report = run_check(CheckOptions(model=str(path), dynamic="true", verify=False))
    assert [b.fqn for b in report.blocks] == ["used.0", "used.1"]
    assert report.verdict == "viable"
    assert any("calls no block of unused.*" in note for note in report.undetermined)


def test_without_a_stack_that_is_called_all_are_told(tmp_path):
    path = tmp_path / "two.py"
    path.write_text(TWO_STACKS)
    report = run_check(CheckOptions(model=f"{path}:idle", verify=False))
    assert [b.fqn for b in report.blocks] == [f"unused.{i}" for i in range(4)] + ["used.0", "used.1"]
    assert [f.cause for f in report.findings] == ["compiled_region_not_reached"]
