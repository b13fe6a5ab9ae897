"""A checkpoint of two ranks becomes a plain model in one process, by the command line, without the training
job.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.test_trainer_resume import ROOT, environment, run_all
from tests.integration.trained_logits import ids, trained_logits
from tests.warm import Warm
from trainer import demo
from trainer.export import export_checkpoint, main, run

METHODS = {"full": {}, "osft": {"osft": True}, "lora": {"lora": True}, "gpt2": {"osft": True}}
WIDE = torch.float64


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> dict[str, Path]:
    """The last checkpoint of a run of each method; the models, their data and their exports are gone."""
    from transformers import AutoConfig

    directory = tmp_path_factory.mktemp("export")
    tied = demo.config(
        num_hidden_layers=1,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    gpt2 = AutoConfig.for_model(
        "gpt2",
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_positions=1024,
        vocab_size=272,
        bos_token_id=0,
        eos_token_id=3,
    )
    for name, config in (("qwen3", tied), ("gpt2", gpt2)):
        config.save_pretrained(directory / name)
        demo.tokenizer().save_pretrained(directory / name)
    demo.write_data(directory / "data.jsonl", count=24)
    common = dict(
        random_init=True,
        data_path=str(directory / "data.jsonl"),
        device="cpu",
        batch_size=8,
        max_steps=3,
        learning_rate=1e-2,
        export=False,
    )
    runs = [
        {
            **common,
            "model_name_or_path": str(directory / ("gpt2" if name == "gpt2" else "qwen3")),
            "output_dir": str(directory / name),
            **method,
        }
        for name, method in METHODS.items()
    ]
    run_all(warm, directory, runs)
    found = {name: (directory / name / "checkpoints" / "last").resolve() for name in METHODS}
    # A new place, and nothing of the job left but the checkpoint.
    moved = {
        name: Path(shutil.move(path, tmp_path_factory.mktemp(f"only-{name}"))) for name, path in found.items()
    }
    shutil.rmtree(directory)
    return moved


@pytest.fixture(scope="module")
def logits(trained: dict[str, Path]) -> dict[str, torch.Tensor]:
    """Of the trained model itself, read back into the trainer's own program."""
    return {name: trained_logits(path, model_name_or_path=str(path / "hf")) for name, path in trained.items()}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bf16", 4e-2)])
@pytest.mark.parametrize("name", METHODS)
def test_the_exported_model_gives_the_trained_logits(
    trained: dict[str, Path],
    logits: dict[str, torch.Tensor],
    tmp_path: Path,
    name: str,
    dtype: str,
    tolerance: float,
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert run([str(trained[name]), str(tmp_path / "hf"), "--dtype", dtype]) == 0
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert plain.dtype == {"float32": torch.float32, "bf16": torch.bfloat16}[dtype] and plain.config.use_cache
    expected = logits[name]
    with torch.no_grad():
        found = plain(ids()).logits.float()
    assert expected.std() > 0.05
    assert (found - expected).abs().max() / expected.abs().max() < tolerance
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").chat_template == demo.TEMPLATE


def test_by_the_command_line_in_files_of_a_given_size(
    trained: dict[str, Path], logits: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    command = [
        sys.executable,
        "-m",
        "trainer.export",
        str(trained["osft"]),
        str(tmp_path / "hf"),
        "--max-shard-size",
        "20KB",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    shards = list((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(shards) > 2 and (tmp_path / "hf" / "model.safetensors.index.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["hf"] and not (tmp_path / "hf" / "scratch").exists()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        assert torch.allclose(plain(ids()).logits, logits["osft"], atol=1e-5)


@pytest.fixture
def copy(trained: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(trained["full"], tmp_path / "step-00000003"))


def test_a_wrong_path_a_half_checkpoint_and_a_full_directory_are_one_line(
    copy: Path, tmp_path: Path, capsys: Any
) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "file").write_text("mine")
    cases = [
        ([copy.parent / "nothing", tmp_path / "out"], "is not a directory"),
        ([copy, used], "exists and is not empty"),
    ]
    cases += [
        ([copy, tmp_path / "out", "--max-shard-size", "big"], "big"),
        ([copy, tmp_path / "out", "--dtype", "int4"], "is not one of"),
    ]
    for arguments, message in cases:
        _refused([str(a) for a in arguments], message, capsys)
    data = copy / "__1_0.distcp"
    content = data.read_bytes()
    data.write_bytes(content[:-100])
    _refused([str(copy), str(tmp_path / "out")], "is damaged: __1_0.distcp", capsys)
    data.write_bytes(b"x" * len(content))
    _refused(
        [str(copy), str(tmp_path / "out")],
        "is damaged: the contents of __1_0.distcp are not what was written",
        capsys,
    )
    data.write_bytes(content)
    state = json.loads((copy / "state.json").read_text())
    (copy / ".metadata").write_bytes(b"\0" * state["files"][".metadata"]["bytes"])
    _refused([str(copy), str(tmp_path / "out")], "is damaged: the contents of .metadata", capsys)
    assert (used / "file").read_text() == "mine" and not list(tmp_path.glob("out*"))


def _refused(arguments: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr().err
    assert (
        ended.value.code == 2
        and printed.startswith("error: ")
        and message in printed
        and printed.count("\n") == 1
    ), printed


def test_values_are_multiplied_out_before_they_are_rounded(trained: dict[str, Path], tmp_path: Path) -> None:
    """bfloat16 of the exact product, not the product of bfloat16s."""
    from safetensors.torch import load_file

    export_checkpoint(trained["osft"], tmp_path / "wide", dtype="float64")
    export_checkpoint(trained["osft"], tmp_path / "narrow", dtype="bfloat16")
    wide, narrow = (
        load_file(tmp_path / "wide" / "model.safetensors"),
        load_file(tmp_path / "narrow" / "model.safetensors"),
    )
    assert wide.keys() == narrow.keys()
    for name, value in wide.items():
        assert value.dtype == WIDE and torch.equal(value.bfloat16(), narrow[name]), name
