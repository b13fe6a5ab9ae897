"""Reading training commands: launcher, ranks, and what one rank runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cftdiag.check import launchers
from cftdiag.errors import InputError


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which torchrun and deepspeed belong to one interpreter, as in a virtual environment."""
    python = tmp_path / "python"
    for name, text in (
        ("python", "#!/bin/sh\n"),
        ("torchrun", f"#!{python}\nimport sys\n"),
        ("deepspeed", f"#!{python}\n"),
        ("tune", f"#!{python}\n"),
        ("train.sh", "#!/bin/sh\n"),
    ):
        (tmp_path / name).write_text(text)
        os.chmod(tmp_path / name, stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_plain_command_is_one_process_without_ranks(commands: Path) -> None:
    launch = launchers.read(["python", "-u", "train.py", "-m", "8"])
    assert launch.command == ("python", "-u", "train.py", "-m", "8")
    assert (launch.world_size, launch.launcher, launch.environment(0)) == (1, None, {})


@pytest.mark.parametrize(
    ("words", "command", "world", "local"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", "train.py --lr 1", 8, 8),
        ("torchrun --nproc_per_node=2 --nnodes=1:4 -m pkg.train -m x", "-m pkg.train -m x", 8, 2),
        ("torchrun --standalone --rdzv-backend c10d train.py", "train.py", 1, 1),
        (
            "deepspeed --num_gpus 4 --num_nodes 2 train.py --deepspeed ds.json",
            "train.py --deepspeed ds.json",
            8,
            4,
        ),
    ],
)
def test_launchers_are_read_not_started(
    commands: Path, words: str, command: str, world: int, local: int
) -> None:
    launch = launchers.read(words.split())
    assert launch.command == (str(commands / "python"), *command.split())
    assert (launch.world_size, launch.local_world_size) == (world, local)


def test_recipes_of_torchtune_run_as_one_rank_without_its_options_of_torchrun(commands: Path) -> None:
    launch = launchers.read(
        "tune run --nproc_per_node 4 lora_finetune_distributed --config a.yaml lr=1".split()
    )
    assert launch.command == tuple("tune run lora_finetune_distributed --config a.yaml lr=1".split())
    assert (launch.world_size, launch.launcher) == (4, "tune")
    alone = "tune run full_finetune_single_device --config a.yaml".split()
    assert launchers.read(alone).command == tuple(alone)
    assert (launchers.read(alone).launcher, launchers.read(alone).environment(0)) == (None, {})


def test_python_module_launcher_keeps_the_interpreter_and_its_options(commands: Path) -> None:
    launch = launchers.read("python -X dev -m torch.distributed.run --nproc-per-node 2 a.py".split())
    # -X takes a word of its own, which hides the module: it is then a plain command
    assert launch.launcher in (None, "torchrun")
    launch = launchers.read("python -u -m torch.distributed.run --nproc-per-node 2 a.py".split())
    assert launch.command == ("python", "-u", "a.py")
    assert launch.launcher == "torchrun"


def test_rank_environment_is_torchruns(commands: Path) -> None:
    launch = launchers.read("torchrun --nproc-per-node 4 --nnodes 2 a.py".split())
    env = launch.environment(6)
    wanted = {"RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
    assert {key: env[key] for key in wanted} == wanted


def test_world_size_goes_over_the_launchers(commands: Path) -> None:
    launch = launchers.read("torchrun --nproc-per-node gpu a.py".split(), world_size=64)
    assert (launch.world_size, launch.local_world_size) == (64, 8)
    assert launchers.read("python a.py".split(), world_size=4).environment(3)["RANK"] == "3"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("no-such-command a.py", "no command no-such-command here"),
        ("torchrun --nproc-per-node gpu a.py", "give --world-size"),
        ("torchrun --nproc-per-node two a.py", "--nproc-per-node two is no number"),
        ("torchrun --nproc-per-node 2", "required"),
    ],
)
def test_what_cannot_be_read_is_one_line(commands: Path, words: str, part: str) -> None:
    with pytest.raises(InputError, match=part) as error:
        launchers.read(words.split())
    assert "\n" not in str(error.value)
