"""Models that are not the catalogue's: code that comes with a directory, a build() that asks for kernels which are not installed."""

import json

import pytest

from cftdiag.check import InputError
from cftdiag.check.driver import run_check
from cftdiag.check.options import CheckOptions

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
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "own_model"
    model.mkdir()
    (model / "modeling_own.py").write_text(MODELING)
    auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (model / "config.json").write_text(json.dumps(SIZES | {"model_type": "own_of_the_test", "auto_map": auto_map}))
    return model


def test_code_of_a_directory_runs_when_it_is_trusted(directory):
    report = run_check(CheckOptions(model=str(directory), trust_remote_code=True, lengths=(24, 40), verify=False))
    assert report.verdict == "viable", report.findings
    assert report.subject["model_class"] == "OwnForCausalLM"
    assert [b.cls for b in report.blocks] == ["LlamaDecoderLayer"] * 2


def test_code_of_a_directory_is_refused_with_the_flag_that_allows_it(directory):
    with pytest.raises(InputError, match=r"model_type 'own_of_the_test' is unknown .*: pass --trust-remote-code"):
        run_check(CheckOptions(model=str(directory), lengths=(24,)))


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


@pytest.mark.parametrize("attention", ["varlen", "flex"])
def test_build_may_ask_for_a_kernel_that_is_not_installed(tmp_path, attention):
    path = tmp_path / "own.py"
    path.write_text(BUILD.replace("SIZES", repr(SIZES)))
    report = run_check(CheckOptions(model=f"{path}:{attention}", verify=False))
    assert report.verdict in ("viable", "viable_with_recompiles"), report.findings
    assert [b.fullgraph for b in report.blocks] == [True, True]
