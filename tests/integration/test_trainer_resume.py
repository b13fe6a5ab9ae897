"""Checkpoints and resuming on two ranks: a run that was stopped, killed or out of disk
goes on as if nothing had been.

The uninterrupted runs of the four programs are made once; every other run is held against them bit for bit,
dropout included. Real torchrun starts what is killed and what is signalled.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Warm
from trainer.checkpoints.layout import candidates, first_whole, read_state

ROOT = Path(__file__).resolve().parents[2]
METHODS = {"full": {}, "osft": {"osft": True}}
MODES = {"eager": {}, "compiled": {"compile_model": True, "compile_backend": "eager"}}
PROGRAMS = [f"{method}-{mode}" for method in METHODS for mode in MODES]
KILLED = "osft-eager"
"""The one that is killed in `make test`: a kill meets files, and compiling writes none of them."""
BY_DEFAULT = [KILLED, "full-compiled"]
"""What runs in `make test`: each method and each mode once."""
ENDS = {"stopped": "stopped", "killed": "killed", "border": "whole", "killed_border": "killed"}
"""How a run that is continued had ended -> whose checkpoints it takes; a border is the end of an epoch."""
SHOWN = {(KILLED, "stopped"), (KILLED, "killed"), (KILLED, "border"), ("full-compiled", "stopped")}
TOTAL, EPOCH = 12, 4
"""Steps of a run and of its epochs."""
EXACT = (
    "step",
    "epoch",
    "loss",
    "grad_norm_raw",
    "grad_norm",
    "lr",
    "leak",
    "val_loss",
    "tokens",
    "total_tokens",
    "lengths",
)


def torchrun(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *arguments,
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_all(warm: Warm, directory: Path, runs: list[dict[str, Any]]) -> str:
    """Some runs in one start of two ranks; returns what they printed."""
    file = directory / f"runs-{time.monotonic_ns()}.json"
    file.write_text(json.dumps(runs))
    return warm.run(Path(__file__).with_name("resume_worker.py"), str(file), ranks=2, cpu=900).stderr


def parameters(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Of each test of the asking file that runs in this session; other files use the same names for other things."""
    own = [item for item in request.session.items if item.path == request.path]
    return [item.callspec.params for item in own if hasattr(item, "callspec")]


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def exact(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record.get(key) for key in EXACT}


def checkpoints(out: Path) -> list[int]:
    return sorted(
        int(path.name.removeprefix("step-"))
        for path in (out / "checkpoints").glob("step-*")
        if path.suffix != ".partial"
    )


class Lab:
    """A model with dropout, its data, and where the runs are."""

    def __init__(self, directory: Path) -> None:
        from trainer import demo

        self.directory = directory
        for name, dropout in (("model", 0.1), ("still", 0.0)):
            shape = dict(
                num_hidden_layers=1,
                hidden_size=32,
                intermediate_size=64,
                num_attention_heads=2,
                num_key_value_heads=1,
            )
            demo.config(**shape, attention_dropout=dropout).save_pretrained(directory / name)
            demo.tokenizer().save_pretrained(directory / name)
        demo.write_data(directory / "data.jsonl", count=27)

    def out(self, name: str) -> Path:
        return self.directory / name

    def config(self, program: str, name: str, **values: Any) -> dict[str, Any]:
        method, mode = program.split("-")
        return {
            "model_name_or_path": str(self.directory / "model"), "random_init": True, "data_path": str(self.directory / "data.jsonl"),
            "validation_split": 0.1, "device": "cpu", "batch_size": 6, "max_tokens_per_gpu": 512, "max_steps": TOTAL, "learning_rate": 3e-3,
            "lr_scheduler": "cosine", "warmup_steps": 3, "osft_leak_every": 5, "checkpoint_every": 3, "checkpoint_epochs": True,
            "loss_chunks": 1, "export": False, "output_dir": str(self.out(name)), **METHODS[method], **MODES[mode], **values,
        }  # fmt: skip

    def kill(self, program: str, at: int, after: float) -> None:
        """Train by the command line, and end all processes at once, ``after`` seconds after step ``at`` and
        once the first epoch is kept.
        """
        out = self.out(f"killed-{program}")
        file = self.directory / f"{program}.yaml"
        file.write_text(
            json.dumps(
                {key: value for key, value in self.config(program, out.name).items() if value is not None}
            )
        )
        with open(self.directory / f"{program}.log", "w") as log:
            process = subprocess.Popen(
                torchrun("-m", "trainer", "--config", str(file)), cwd=ROOT, env=environment(), stderr=log
            )
            wait_for(out, at, process)
            while not (out / "checkpoints" / f"step-{EPOCH:08d}").exists():
                time.sleep(0.005)
            time.sleep(after)
            # The workers are sessions of their own and would outlive torchrun.
            for pid in [*children(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.wait()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(out: Path, step: int, process: subprocess.Popen[Any]) -> None:
    path = out / "metrics.jsonl"
    while not (path.exists() and f'"step": {step},' in path.read_text()):
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> list[str]:
    """Those that run in this session."""
    asked = {values.get("program") for values in parameters(request)}
    return [program for program in PROGRAMS if program in BY_DEFAULT or program in asked]


@pytest.fixture(scope="module")
def continued(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """(program, how) of the runs that are continued in this session."""
    wanted = SHOWN | {(values["program"], values["how"]) for values in parameters(request) if "how" in values}
    return [(program, how) for program in PROGRAMS for how in ENDS if (program, how) in wanted]


@pytest.fixture(scope="module")
def first(lab: Lab, warm: Warm, programs: list[str]) -> str:
    """The uninterrupted runs, the clean stops, a full disk, and what two ranks give to one; returns what was
    printed.
    """
    still = {
        "model_name_or_path": str(lab.directory / "still"),
        "max_steps": 10,
        "checkpoint_every": 6,
        "keep_checkpoints": 9,
    }
    return run_all(
        warm,
        lab.directory,
        [
            *(lab.config(program, f"whole-{program}") for program in programs),
            *(lab.config(program, f"stopped-{program}", signal_at=EPOCH + 1) for program in programs),
            lab.config(
                "full-eager",
                "full-disk",
                max_steps=10,
                full_disk=[3, 6],
                checkpoint_every=2,
                checkpoint_epochs=False,
            ),
            *(lab.config(f"{method}-eager", f"two-{method}", **still) for method in METHODS),
        ],
    )


@pytest.fixture(scope="module")
def one(lab: Lab) -> None:
    """A run on one rank that two continue."""
    import trainer

    still = {
        "model_name_or_path": str(lab.directory / "still"),
        "max_steps": 10,
        "checkpoint_every": 6,
        "keep_checkpoints": 9,
    }
    trainer.run_training(lab.config("osft-eager", "one-osft", **still))


@pytest.fixture(scope="module")
def killed(lab: Lab, first: str, request: pytest.FixtureRequest) -> dict[str, tuple[int, float]]:
    """Runs killed at a random moment after the first epoch, the same in every session; returns the moments."""
    dice = random.Random(6)
    asked = parameters(request)
    programs = [
        p for p in PROGRAMS if any(a.get("program") == p and "killed" in a.get("how", "") for a in asked)
    ]
    moments = {program: (dice.randint(EPOCH + 1, EPOCH + 3), dice.uniform(0, 0.1)) for program in programs}
    for program, moment in moments.items():
        lab.kill(program, *moment)
    return moments


@pytest.fixture(scope="module")
def second(
    lab: Lab,
    first: str,
    killed: dict[str, tuple[int, float]],
    one: None,
    warm: Warm,
    programs: list[str],
    continued: list[tuple[str, str]],
) -> dict[str, Any]:
    """Every run is continued in one start. Returns what was printed, and the newest checkpoint that each had
    before, by output directory.
    """
    runs = []
    rarely = {"checkpoint_every": 0, "checkpoint_epochs": False, "checkpoint_best": False}
    for program, how in continued:
        values = {"resume": "auto"}
        if "border" in how:
            # Taken out of the run's directory, where it would be one of several.
            aside = lab.out(f"{how}-from-{program}") / f"step-{EPOCH:08d}"
            shutil.copytree(lab.out(f"{ENDS[how]}-{program}") / "checkpoints" / aside.name, aside)
            values = {"resume": str(aside)}
        runs.append(lab.config(program, f"{how}-{program}", **values, **rarely))
    before: dict[str, Any] = {
        Path(run["output_dir"]).name: checkpoints(Path(run["output_dir"]))[-1:] for run in runs
    }
    before["stopped.json"] = {
        program: json.loads((lab.out(f"stopped-{program}") / "stopped.json").read_text())
        for program in programs
    }
    still = {"model_name_or_path": str(lab.directory / "still"), "max_steps": 10, "checkpoint_every": 0}
    earlier = str(lab.out("one-osft") / "checkpoints" / "step-00000006")
    before["printed"] = run_all(
        warm, lab.directory, [*runs, lab.config("osft-eager", "one_two-osft", resume=earlier, **still)]
    )
    return before


SEE = pytest.mark.everything(
    "15 s a program, and each kill is a start by torchrun; each method and each mode stays, one kill, one border"
)


@pytest.mark.parametrize(
    ("program", "how"),
    [
        pytest.param(program, how, marks=[] if (program, how) in SHOWN else [SEE])
        for program in PROGRAMS
        for how in ENDS
    ],
)
def test_a_continued_run_is_the_uninterrupted_one_bit_for_bit(
    lab: Lab, second: dict[str, Any], killed: dict[str, tuple[int, float]], program: str, how: str
) -> None:
    whole = {record["step"]: record for record in metrics(lab.out(f"whole-{program}"))}
    ours = metrics(lab.out(f"{how}-{program}"))
    taken_from = EPOCH if "border" in how else second[f"{how}-{program}"][0]
    assert EPOCH <= taken_from < TOTAL
    assert how != "stopped" or taken_from % EPOCH, "the clean stop is in mid-epoch"
    assert [record["step"] for record in ours] == list(
        range(taken_from + 1 if "border" in how else 1, TOTAL + 1)
    ), "each step once"
    for record in ours:
        assert exact(record) == exact(whole[record["step"]]), (
            f"taken from step {taken_from}, killed at {killed.get(program)}"
        )
    assert not list((lab.out(f"{how}-{program}") / "checkpoints").glob("*.partial"))


@pytest.mark.parametrize(
    "program",
    [pytest.param(program, marks=[] if program in BY_DEFAULT else [SEE]) for program in PROGRAMS],
)
def test_a_signal_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(
    lab: Lab, second: dict[str, Any], program: str
) -> None:
    marked = second["stopped.json"][program]
    assert EPOCH + 1 <= marked["step"] < 2 * EPOCH
    assert second[f"stopped-{program}"] == [marked["step"]]
    assert not (lab.out(f"stopped-{program}") / "stopped.json").exists(), (
        "a run that goes on is not a stopped one"
    )


def test_a_continued_run_compiles_before_its_first_step(
    second: dict[str, Any], lab: Lab, continued: list[tuple[str, str]]
) -> None:
    compiled = [(program, how) for program, how in continued if program.endswith("-compiled")]
    assert second["printed"].count("compiled as before from") == len(compiled)
    for program, how in compiled:
        # a run that goes on in its own directory has the lines of the first as well
        before = second[f"{how}-{program}"][0] if "border" not in how else 0
        ours = [record for record in metrics(lab.out(f"{how}-{program}")) if record["step"] > before]
        assert metrics(lab.out(f"whole-{program}"))[0]["graphs"] == 1
        assert ours and [record["graphs"] for record in ours] == [0] * len(ours)


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(lab: Lab, first: str) -> None:
    assert re.search(
        r"warning: no checkpoint was written to \S+/step-\d+\.partial: rank 0: OSError: \[Errno 27\] File too large",
        first,
    )
    assert len(metrics(lab.out("full-disk"))) == 10
    assert checkpoints(lab.out("full-disk"))[-2:] == [8, 10]
    assert not list((lab.out("full-disk") / "checkpoints").glob("*.partial"))


def test_a_disk_without_room_leaves_the_checkpoint_before(lab: Lab, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "-Urm", "sh", "-c", f'mount -t tmpfs -o size=1200k tmpfs {disk} && eval "$0"']
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("no right to mount a file system here")
    file = tmp_path / "run.yaml"
    file.write_text(
        json.dumps(
            {
                **lab.config("full-eager", "x", max_steps=6, checkpoint_best=False),
                "output_dir": str(disk / "out"),
            }
        )
    )
    # Room for one checkpoint of half a megabyte, not for two.
    script = f"head -c 500000 /dev/zero > {disk}/fill; {sys.executable} -m trainer --config {file}; code=$?; cp -a {disk}/out {tmp_path}; exit $code"
    done = subprocess.run(
        [*mount, script], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 2, done.stderr
    assert re.search(
        r"error: the last checkpoint could not be written to \S+/step-00000006\.partial: rank 0: ",
        done.stderr,
    )
    assert "No space left" in done.stderr or "is the disk full?" in done.stderr, (
        "torch's writer does not always pass the reason on"
    )
    assert len(metrics(tmp_path / "out")) == 6, "training went on"
    assert (
        first_whole(candidates("auto", tmp_path / "out" / "checkpoints"), print)
        == tmp_path / "out" / "checkpoints" / "step-00000003"
    )
    assert not list((tmp_path / "out" / "checkpoints").glob("*.partial"))


def test_the_newest_of_an_epoch_and_the_best_are_kept(lab: Lab, first: str) -> None:
    directory = lab.out(f"whole-{KILLED}") / "checkpoints"
    by_epoch = list(range(EPOCH, TOTAL + 1, EPOCH))
    best = min(metrics(lab.out(f"whole-{KILLED}")), key=lambda record: record.get("val_loss", 1e9))["step"]
    assert checkpoints(lab.out(f"whole-{KILLED}")) == sorted({*by_epoch, best, TOTAL - 3, TOTAL})
    assert (directory / "best").resolve().name == f"step-{best:08d}" and (
        directory / "last"
    ).resolve().name == f"step-{TOTAL:08d}"
    assert read_state(directory / "best").best.step == best


@pytest.mark.parametrize("method", METHODS)
def test_one_rank_continues_what_two_began(
    lab: Lab, first: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trainer
    import trainer.weights

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a resumed run decomposes nothing")

    monkeypatch.setattr(trainer.weights, "decompose", never)
    values = lab.config(
        f"{method}-eager", f"two_one-{method}", model_name_or_path=str(lab.directory / "still"), max_steps=10, checkpoint_every=0,
        resume=str(lab.out(f"two-{method}") / "checkpoints" / "step-00000006"),
    )  # fmt: skip
    trainer.run_training(values)
    _same_samples_and_losses(metrics(lab.out(f"two_one-{method}")), metrics(lab.out(f"two-{method}"))[6:])


def test_two_ranks_continue_what_one_began(lab: Lab, second: dict[str, Any]) -> None:
    _same_samples_and_losses(metrics(lab.out("one_two-osft")), metrics(lab.out("one-osft"))[6:])


def _same_samples_and_losses(ours: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    assert len(ours) == len(whole) == 4
    for now, was in zip(ours, whole, strict=True):
        assert [
            now[key] for key in ("step", "epoch", "samples", "tokens", "loss_tokens", "total_tokens")
        ] == [was[key] for key in ("step", "epoch", "samples", "tokens", "loss_tokens", "total_tokens")]
        assert now["loss"] == pytest.approx(was["loss"], rel=1e-5)


def test_other_options_are_refused_in_one_line(lab: Lab, first: str, tmp_path: Path) -> None:
    import trainer
    from trainer import demo

    checkpoint = lab.out("two-full") / "checkpoints" / "step-00000006"
    deeper = lab.directory / "deeper"
    shutil.copytree(lab.directory / "still", deeper)
    demo.config(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).save_pretrained(deeper)
    for values, message in (
        ({"osft": True}, "was trained with method full, this run has osft"),
        ({"batch_size": 5}, "was trained with batch-size 6, this run has 5"),
        ({"validation_split": 0.2}, "was trained with validation-split 0.1"),
        ({"max_steps": 5}, "is at step 6, this run ends at 5"),
        (
            {"model_name_or_path": str(deeper)},
            r"lacks \d+ of this model's tensors, the first is model.model.layers.1",
        ),
        ({"resume": str(checkpoint.parent)}, "holds checkpoints but is none"),
    ):
        config = lab.config(
            "full-eager", "refused", model_name_or_path=str(lab.directory / "still"), resume=str(checkpoint)
        )
        with pytest.raises(ValueError, match=message):
            trainer.run_training({**config, "output_dir": str(tmp_path), **values})


@pytest.mark.everything("20 s by torchrun; that a signal stops all after one step stays")
def test_the_command_line_ends_with_85_and_torchrun_leaves_a_mark(lab: Lab) -> None:
    """The workers that collate are signalled like the rest of their group, and must live on for the step that
    is to be finished.
    """
    for name, command, number in (
        ("single", [sys.executable], signal.SIGUSR1),
        ("launched", torchrun(), signal.SIGTERM),
    ):
        out = lab.out(name)
        file = lab.directory / f"{name}.yaml"
        file.write_text(json.dumps(lab.config("full-eager", name, max_steps=4000, num_workers=1)))
        with open(lab.directory / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                [*command, "-m", "trainer", "--config", str(file)], cwd=ROOT, env=environment(), stderr=log
            )
            wait_for(out, 3, process)
            process.send_signal(number)
            code = process.wait(timeout=1500)
        printed = (lab.directory / f"{name}.log").read_text()
        # torchrun says that it got a signal, not what its workers said.
        assert code == (85 if name == "single" else 1), printed
        stopped = json.loads((out / "stopped.json").read_text())
        assert stopped["step"] == metrics(out)[-1]["step"] == checkpoints(out)[-1] < 4000
        assert stopped["signal"] == number.name
        assert "killed by signal" not in printed
