"""Scripts that ask for what this machine does not have: other ranks, CUDA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


def rehearse(folder: Path, *words: str) -> dict[str, Any]:
    path = folder / "check.json"
    done = subprocess.run(
        [sys.executable, "-m", "cftdiag", "check", "--no-verify", "--json", str(path), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert os.listdir(folder) == ["check.json"]
    data: dict[str, Any] = json.loads(path.read_text())
    assert data["script"]["ended"] == "ran to its end"
    return data


@pytest.mark.slow
def test_fsdp2_rank_that_recompiles_alone_is_told(tmp_path: Path) -> None:
    data = rehearse(tmp_path, "--rank", "0,1", "--", *TORCHRUN, str(SCRIPTS / "fsdp2.py"))
    assert (data["script"]["steps"], data["script"]["ranks"], data["subject"]["world_size"]) == (5, [0, 1], 2)
    alone = next(f for f in data["findings"] if f["cause"] == "rank_divergent_recompile")
    assert alone["steps"] == [4]
    assert {f["cause"] for f in data["findings"] if f["kind"] == "recompile"} == {
        "requires_grad",
        "seq_len",
        "size_0_1",
    }


@pytest.mark.slow
def test_ddp_with_a_sampler_and_a_data_worker_runs_to_its_end(tmp_path: Path) -> None:
    data = rehearse(tmp_path, "--rank", "1", "--", *TORCHRUN, str(SCRIPTS / "ddp.py"))
    assert (data["script"]["steps"], data["subject"]["world_size"]) == (6, 2)
    assert "batch_dim" in {f["cause"] for f in data["findings"]}
    assert data["script"]["ranks"] == [1] and data["compiles"]


@pytest.mark.slow
def test_cuda_is_answered_for(tmp_path: Path) -> None:
    data = rehearse(tmp_path, "--", sys.executable, str(SCRIPTS / "cuda_amp.py"))
    assert data["verdict"] == "viable_with_recompiles"
    assert [(c["step"], c["length"], c["cause"]) for c in data["compiles"]] == [
        (1, 16, None),
        (1, 16, "requires_grad"),
        (4, 24, "seq_len"),
        (4, 24, "seq_len"),
    ]
    assert any("CUDA was answered for by NVIDIA H200" in note for note in data["undetermined"])


@pytest.mark.slow
def test_compiled_regions_may_name_cuda(tmp_path: Path) -> None:
    data = rehearse(tmp_path, "--", sys.executable, str(SCRIPTS / "cuda_inside.py"))
    assert {(f["kind"], f["cause"]) for f in data["findings"]} == {
        ("recompile", "requires_grad"),
        ("limit_hit", "layer_idx"),
        ("graph_break", "disabled_function"),
    }
    # what hit the limit runs eager, and what breaks is no whole graph
    assert {b["fullgraph"] for b in data["blocks"]} == {False}


@pytest.mark.everything("13 s; FSDP2 and DDP stay, and unit tests of the comparison")
@pytest.mark.slow
def test_fsdp1_ranks_that_part_in_their_collectives_are_told(tmp_path: Path) -> None:
    script = str(SCRIPTS / "fsdp1.py")
    data = rehearse(tmp_path, "--rank", "0,1", "--", *TORCHRUN, script, "uneven")
    assert data["script"]["steps"] == 3
    (parted,) = (f for f in data["findings"] if f["cause"] == "rank_divergent_recompile")
    assert (parted["severity"], parted["steps"]) == ("error", [3])
    assert "while rank 1 calls allreduce of 1 element (fsdp1.py:" in parted["explanation"]


@pytest.mark.everything("10 s; unit/test_script_launchers.py reads its command lines")
@pytest.mark.slow
def test_accelerate_says_what_it_would_start(tmp_path: Path) -> None:
    accelerate = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2")
    data = rehearse(tmp_path, "--", *accelerate, str(SCRIPTS / "accelerate_loop.py"))
    assert data["script"]["launcher"] == "accelerate"
    assert data["subject"]["world_size"] == 2


@pytest.mark.everything("20 s of 28 layers; the other worlds stay")
@pytest.mark.slow
def test_hub_model_by_its_name_needs_no_weights(tmp_path: Path) -> None:
    data = rehearse(tmp_path, "--", sys.executable, str(SCRIPTS / "pretrained.py"))
    assert data["subject"]["parameters"] == 596_049_920
    assert {(b["fqn"], b["graphs"], b["fullgraph"]) for b in data["blocks"]} == {
        (f"model.layers.{i}", 1, True) for i in range(28)
    }
    assert data["subject"]["lengths"] == [64, 96, 80]
    assert len(data["compiles"]) == 1 and data["timing"]["peak_rss_gb"] < 2
    assert any(path.endswith("saved/model.safetensors") for path in data["script"]["written"])
