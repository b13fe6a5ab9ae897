"""Options: flags and YAML with the same names, contradictions and wrong types named in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.cli import main, parse
from trainer.config import TrainConfig, read_yaml


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model-name-or-path: m\nlearning_rate: 1.0e-4\nosft: true\nlength-buckets: [64, 4096]\n")
    config = parse(
        ["--config", str(path), "--learning-rate", "2e-4", "--osft-target-patterns", "q_proj,k_proj"]
    )
    assert (config.model_name_or_path, config.learning_rate, config.method) == ("m", 2e-4, "osft")
    assert config.length_buckets == (64, 4096) and config.osft_target_patterns == ("q_proj", "k_proj")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"osft": True, "lora": True}, "osft and lora are two methods; give one of them"),
        ({"method": "full", "lora": True}, "full and lora are two methods; give one of them"),
        ({"method": "qlora", "lora": True}, "qlora and lora are two methods; give one of them"),
        ({"method": "qat", "dtype": "float64"}, "qat rounds float32 and bfloat16 only"),
        ({"method": "dora"}, "method must be one of full, osft, lora"),
        ({"compile_model": True, "compile_scope": "loss"}, "give one of them"),
        ({"demo": True, "data_path": "x"}, "demo brings its own"),
        ({"osft_unfreeze_rank_ratio": 1.5}, "between 0 and 1"),
        ({"osft_task": "4/3"}, "such as 2/3, not '4/3'"),
        ({"osft_task": "2"}, "such as 2/3, not '2'"),
        ({"osft_task": "2/3", "osft_task_ratios": ("0.7",)}, "two shares between 0 and 1 .* not '0.7'"),
        ({"osft_task": "2/3", "osft_task_ratios": ("0.7", "2")}, "two shares between 0 and 1"),
        ({"osft_task": "2/3", "osft_unfreeze_rank_ratio": 0.5}, "give one of them"),
        ({"osft_beside": "norms"}, "osft-beside must be one of all, blocks, none"),
        ({"validation_split": 0.1, "validation_path": "x"}, "give one of them"),
        ({"batch_size": 0}, "batch-size must be at least 1"),
        ({"batch_size": "8"}, "batch-size must be an integer, not '8'"),
        ({"learning_rate": "1e-5"}, "learning-rate must be a number, not '1e-5'"),
        ({"batch_size": True}, "batch-size must be an integer"),
        ({"ac": "some"}, "ac must be one of none, full, selective"),
        ({"train_dtype": "int8"}, "train-dtype must be one of"),
        ({"max_tokens_per_gpu": 4}, "below pad-to-multiple-of"),
        ({"length_buckets": (64,)}, "must hold max-tokens-per-gpu"),
        ({"learning-rat": 1.0}, "unknown option 'learning-rat'; did you mean learning-rate"),
        ({"collective_timeout": 0}, "collective-timeout must be at least 1"),
        ({"frobnicate": 1.0}, "unknown option 'frobnicate'; the options are listed"),
        ({"context-parallel": 2}, "context-parallel: rows are not split over ranks"),
        ({"expert_parallel": 2}, "expert-parallel: experts are not spread over ranks"),
        ({"objective": "grpo", "grpo_iterations": 0}, "grpo-iterations must be at least 1"),
        ({"skip_nonfinite": -1}, "skip-nonfinite must be 0 or more"),
        ({"train_on": "user"}, "train-on must be one of all, assistant, completion"),
        ({"batch_size": None}, "batch-size needs a value"),
        ({"checkpoint_every": -1}, "checkpoint-every must be 0 or more, not -1"),
        ({"learning_rate": float("nan")}, "learning-rate must be 0 or more, not nan"),
        ({"seed": 2**32}, r"seed must be below 2\*\*32"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig.from_mapping(values)


def test_a_method_has_one_meaning_under_both_names(tmp_path: Path) -> None:
    assert TrainConfig().method == "full"
    for name in ("osft", "lora"):
        assert (
            TrainConfig(method=name)
            == TrainConfig(**{name: True})
            == TrainConfig(method=name, **{name: True})
        )
    path = tmp_path / "run.yaml"
    for file, flags, method in (
        ("osft: true", ["--method", "lora"], "lora"),
        ("method: osft", ["--lora"], "lora"),
        ("osft: true", ["--no-osft"], "full"),
        ("method: osft", ["--no-osft"], "full"),
        ("method: osft", ["--no-lora"], "osft"),
        ("method: lora", ["--seed", "1"], "lora"),
    ):
        path.write_text(file + "\n")
        assert parse(["--config", str(path), *flags]).method == method, (file, flags)


def test_compile_model_is_scope_block() -> None:
    assert TrainConfig().scope == "none"
    assert TrainConfig(compile_model=True).scope == "block"
    assert TrainConfig(compile_model=True, compile_scope="block+loss").scope == "block+loss"


def test_later_tasks_train_fewer_directions() -> None:
    def ratios(count: int, **values: Any) -> list[float]:
        return [TrainConfig(osft_task=f"{k}/{count}", **values).unfreeze_ratio for k in range(1, count + 1)]

    assert ratios(3) == pytest.approx([0.7, 0.5, 0.3])
    assert ratios(2, osft_task_ratios=("0.5", "0")) == pytest.approx([0.5, 0.0])
    assert ratios(1) == [0.7]
    assert TrainConfig(osft_unfreeze_rank_ratio=0.4).unfreeze_ratio == 0.4


def test_options_of_another_method_are_told() -> None:
    assert TrainConfig(osft=True, osft_ranks="adaptive", osft_task="1/2").without_effect() == []
    told = TrainConfig(lora=True, lora_rank=4, osft_ranks="adaptive", osft_beside="none").without_effect()
    assert told == ["osft-beside, osft-ranks: no effect without --osft"]
    assert TrainConfig(lora_rank=4).without_effect() == ["lora-rank: no effect without --lora"]
    told = TrainConfig(osft=True, osft_task_ratios=("0.5", "0.1")).without_effect()
    assert told == ["osft-task-ratios: no effect without --osft-task"]
    for values, told in (
        (
            {"dynamic": "false", "compile_cache": "f"},
            ["dynamic, compile-cache: no effect without --compile-model or --compile-scope"],
        ),
        ({"dynamic": "false", "compile_scope": "loss"}, []),
        ({"validate_every": 5}, ["validate-every: no effect without a validation set"]),
        ({"validate_every": 5, "validation_split": 0.1}, []),
        ({"min_lr_ratio": 0.1}, ["min-lr-ratio: no effect without --lr-scheduler linear or cosine"]),
        ({"min_lr_ratio": 0.1, "lr_scheduler": "cosine"}, []),
        (
            {"objective": "grpo", "token_cache": "t"},
            ["token-cache: no effect without an objective whose rows are known before"],
        ),
    ):
        assert TrainConfig(**values).without_effect() == told
    assert TrainConfig(warmup_steps=9).without_effect_in(10) == []
    assert "all of the 9 steps" in TrainConfig(warmup_steps=9).without_effect_in(9)[0]


def test_the_environment_overrides_the_default_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_BACKEND", "aot_eager")
    assert TrainConfig().backend == "aot_eager"
    assert TrainConfig(compile_backend="eager").backend == "eager"
    monkeypatch.delenv("TORCH_COMPILE_BACKEND")
    assert TrainConfig().backend == "inductor"


def test_short_dtype_names() -> None:
    assert TrainConfig(train_dtype="bf16").train_dtype == "bfloat16"


def test_one_epoch_unless_told_otherwise() -> None:
    assert TrainConfig().epochs == 1
    assert TrainConfig(max_steps=5).epochs is None


def test_round_trip() -> None:
    config = TrainConfig(osft=True, length_buckets=(4096,), dtype="bf16")
    assert TrainConfig.from_mapping(config.to_dict()) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-such-flag"], "No such option"),
        (["--batch-size", "x"], "'x' is not a valid integer"),
        (["--config", "/nowhere.yaml"], "cannot read /nowhere.yaml"),
        (["--length-buckets", "a,b"], "'a,b' is not a list of integers"),
        (["--demo", "--output-dir", "/dev/null/x"], "cannot write into /dev/null/x (Not a directory)"),
        (["--model-name-or-path", "./nowhere", "--output-dir", "{tmp}"], "no model directory ./nowhere"),
        (
            ["--demo", "--max-steps", "2", "--profile-steps", "5-6", "--output-dir", "{tmp}"],
            "profile-steps begins at step 5, this run ends at 2",
        ),
        (["--output-dir", "{tmp}"], "no model: give --model-name-or-path"),
        (["--model-name-or-path", "{tmp}", "--output-dir", "{tmp}"], "cannot open model"),
        (["--demo", "--device", "cuda", "--output-dir", "{tmp}"], "no CUDA device"),
        (["--demo", "--attn", "flash_attention_9", "--output-dir", "{tmp}"], "does not support attention"),
        (
            ["--demo", "--compile-model", "--compile-backend", "nope", "--output-dir", "{tmp}"],
            "unknown compile backend 'nope'",
        ),
        (
            ["--demo", "--osft", "--osft-target-patterns", "nope", "--output-dir", "{tmp}"],
            "no Linear of 'qwen3' matches nope",
        ),
        (["--demo", "--replicas", "2", "--output-dir", "{tmp}"], "1 ranks cannot hold 2 replicas"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    if "cuda" in arguments:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
    with pytest.raises(SystemExit) as caught:
        main([a.format(tmp=tmp_path) for a in arguments])
    assert caught.value.code == 2
    lines = capsys.readouterr().err.strip().split("\n")
    assert lines[-1].startswith("error: ") and message in lines[-1]


@pytest.mark.parametrize(
    "where", ["trainer.loop.run", "trainer.cli.configuration", "trainer.cli.Listed.convert"]
)
def test_ctrl_c_is_one_line_and_exit_code_130(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["--demo", "--output-dir", str(tmp_path), "--length-buckets", "4096"])
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip().startswith("error: interrupted")


def test_flags_are_the_fields_and_the_last_of_two_wins() -> None:
    config = parse(["--no-export", "--osft", "--length-buckets", "64", "--length-buckets", "512,4096"])
    assert (config.export, config.osft, config.length_buckets) == (False, True, (64, 512, 4096))
    assert parse(["--batch-size", "4", "--batch-size", "6"]).batch_size == 6
    assert parse(["--train-dtype", "bf16"]).train_dtype == "bfloat16", "short names are the configuration's"
    assert parse([]) == TrainConfig()


def test_a_mistyped_flag_names_its_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--lerning-rate", "1e-4"])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: No such option") and "--lerning-rate" in line and "--learning-rate" in line


def test_a_bug_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("trainer.loop.run", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["--demo", "--output-dir", str(tmp_path)])


def test_only_rank_zero_tells_of_an_interrupt_and_others_say_who_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr("time.sleep", slept.append)
    with pytest.raises(SystemExit) as ended:
        main(["--batch-size", "0"])
    assert ended.value.code == 2 and slept
    assert capsys.readouterr().err.startswith("error: rank 3: batch-size must be at least 1")


def test_the_shell_completes_flags_and_choices() -> None:
    from click.shell_completion import ShellComplete

    from trainer.cli import command

    def completed(args: list[str], word: str) -> list[str]:
        shell = ShellComplete(command(), {}, "cftdiag-train", "_CFTDIAG_TRAIN_COMPLETE")
        return [item.value for item in shell.get_completions(args, word)]

    assert completed([], "--osft-un") == ["--osft-unfreeze-rank-ratio"]
    assert completed(["--compile-scope"], "block") == ["block", "block+loss"]


@pytest.mark.parametrize("text", ["1e-5", "1.e-5", "1.0e-5", "0.00001", "+1E-5"])
def test_a_number_with_an_exponent_is_one_in_a_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(f"learning-rate: {text}\ndata_path: 1e5 rows\n")
    assert read_yaml(tmp_path / "run.yaml") == {"learning_rate": 1e-5, "data_path": "1e5 rows"}
