"""Every compile scope trains to the same loss as eager, and is really compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from tests.warm import Warm
from trainer import demo


def _train(tiny: Path, out: Path, **values: Any) -> list[dict[str, Any]]:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cpu", max_tokens_per_gpu=512, batch_size=6,
        max_steps=3, learning_rate=1e-2, export=False, loss_chunks=2, train_dtype="float64", compile_backend="aot_eager", output_dir=str(out),
    )  # fmt: skip
    trainer.run_training({**base, **values})
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


_EAGER: dict[str, list[dict[str, Any]]] = {}


def _eager(tiny: Path, out: Path, method: str) -> list[dict[str, Any]]:
    if method not in _EAGER:
        _EAGER[method] = _train(tiny, out, **({method: True} if method != "full" else {}))
    return _EAGER[method]


def _same(a: list[dict[str, Any]], b: list[dict[str, Any]], rel: float) -> None:
    for x, y in zip(a, b, strict=True):
        for key in ("loss", "grad_norm", "grad_norm_raw"):
            assert x[key] == pytest.approx(y[key], rel=rel), (key, x["step"])


_SCOPE = pytest.mark.everything(
    "8 s each; both regions apart, the model in one and selective checkpointing stay"
)


@pytest.mark.parametrize(
    ("scope", "graphs", "values"),
    [
        ("block", 1, {}),
        ("loss", 1, {}),
        ("block+loss", 2, {"compile_backend": "eager"}),
        ("model", 1, {"compile_backend": "eager"}),
        pytest.param("model+loss", 1, {}, marks=_SCOPE),
        pytest.param("block", 1, {"ac": "full"}, marks=_SCOPE),
        ("block", 1, {"ac": "selective"}),
        ("block", 1, {"lora": True, "compile_backend": "eager"}),
        ("block", 1, {"osft": True, "compile_backend": "eager"}),
    ],
)
def test_scope_trains_as_eager_does(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, scope: str, graphs: int, values: dict[str, Any]
) -> None:
    method = next((m for m in ("osft", "lora") if values.get(m)), "full")
    eager = (
        _train(tiny, tmp_path / "e", **values) if method == "osft" else _eager(tiny, tmp_path / "e", method)
    )
    compiled = _train(tiny, tmp_path / "c", compile_scope=scope, **values)
    _same(compiled, eager, 1e-7)
    assert [r["graphs"] for r in compiled] == [graphs, 0, 0]
    assert not any(r["recompiles"] for r in compiled)
    assert len({n for r in compiled for micro in r["lengths"] for n in micro}) >= 3


def test_adaptive_ranks_are_a_graph_for_each_level(fresh_dynamo: None, tiny: Path, tmp_path: Path) -> None:
    compiled = _train(
        tiny, tmp_path, osft=True, osft_ranks="adaptive", compile_model=True, compile_backend="eager"
    )
    assert [r["graphs"] for r in compiled] == [2, 0, 0]
    assert "_low" in compiled[0]["recompiles"][0]["reason"]


@pytest.mark.everything("half a minute of g++; every scope trains as eager does under aot_eager")
def test_inductor_trains_as_eager_does(fresh_dynamo: None, tiny: Path, tmp_path: Path) -> None:
    eager = _train(tiny, tmp_path / "e", train_dtype="float32")
    compiled = _train(
        tiny, tmp_path / "c", train_dtype="float32", compile_scope="block+loss", compile_backend="inductor"
    )
    _same(compiled, eager, 1e-3)
    assert compiled[0]["graphs"] == 2


@pytest.mark.everything("two starts with g++; Inductor trains as eager does in `make test`, too")
def test_compiled_artifacts_are_carried_to_the_next_start(tiny: Path, tmp_path: Path, warm: Warm) -> None:
    code = """
        import sys, trainer
        tiny, out = sys.argv[1:]
        trainer.run_training(dict(
            model_name_or_path=tiny, random_init=True, data_path=tiny + "/data.jsonl", device="cpu", max_tokens_per_gpu=512, max_steps=1,
            export=False, output_dir=out, compile_scope="loss", compile_backend="inductor", compile_cache=out + "/../artifacts"))
        """
    # Each start has an empty cache directory of its own: what is hit in the second came through the file.
    first, second = (
        warm.run(
            code,
            str(tiny),
            str(tmp_path / name),
            env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"cache_{name}")},
        )
        for name in "ab"
    )
    assert "nothing saved yet" in first.stderr and "saved" in first.stderr
    assert "artifacts" in second.stderr and "loaded" in second.stderr
    events = [
        json.loads(line)
        for line in (tmp_path / "b" / "run" / "events" / "rank00000.jsonl").read_text().splitlines()
    ]
    outcomes = {(e["detail"]["cache"], e["detail"]["outcome"]) for e in events if e["kind"] == "cache"}
    assert any(outcome == "hit" for _, outcome in outcomes), outcomes
    assert not any(outcome == "miss" for _, outcome in outcomes), outcomes


@pytest.mark.parametrize("scope", ["block", "loss", "model"])
def test_a_request_that_compiles_nothing_is_an_error(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, scope: str
) -> None:
    torch.compiler.set_stance("force_eager")
    try:
        with pytest.raises(ValueError, match=f"compile scope {scope}: .* nothing was compiled"):
            _train(tiny, tmp_path, compile_scope=scope)
    finally:
        torch.compiler.set_stance("default")


def test_validation_and_checkpoints_are_on_their_steps(tiny: Path, tmp_path: Path) -> None:
    records = _train(
        tiny,
        tmp_path,
        validation_split=0.25,
        validate_every=2,
        max_steps=5,
        checkpoint_every=2,
        keep_checkpoints=2,
    )
    assert [("val_loss" in r) for r in records] == [False, True, False, True, False]
    checkpoints = tmp_path / "checkpoints"
    assert sorted(p.name for p in checkpoints.iterdir()) == ["best", "last", "step-00000004", "step-00000005"]
    assert ((checkpoints / "best").resolve().name, (checkpoints / "last").resolve().name) == (
        "step-00000004",
        "step-00000005",
    )
    assert records[3]["val_loss"] < records[1]["val_loss"] < records[0]["loss"]


def test_a_loss_that_is_not_finite_stops_with_step_and_lines(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(
        FloatingPointError,
        match=r"step [23]: loss is nan, gradient norm nan; the batch is lines \[.*\] of the data",
    ):
        _train(tiny, tmp_path, learning_rate=1e300, max_grad_norm=0.0, max_steps=5, checkpoint_every=1)
    assert (tmp_path / "checkpoints" / "step-00000001").exists()


def test_workers_and_streaming_change_nothing(tiny: Path, tmp_path: Path) -> None:
    _same(
        _train(tiny, tmp_path / "w", num_workers=1, streaming=True),
        _eager(tiny, tmp_path / "e", "full"),
        1e-9,
    )


def test_a_checkpoint_of_another_method_is_refused(tiny: Path, tmp_path: Path) -> None:
    _train(tiny, tmp_path, max_steps=1)
    with pytest.raises(ValueError, match=r"was trained with method full, this run has osft"):
        _train(tiny, tmp_path, max_steps=2, resume="auto", osft=True)
    with pytest.raises(ValueError, match=r"was trained with method full, this run has lora"):
        _train(tiny, tmp_path, max_steps=2, resume="auto", lora=True)


def test_gradients_are_projected_before_they_are_clipped(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = []
    step = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        grads = [
            p.grad.full_tensor() for group in self.param_groups for p in group["params"] if p.grad is not None
        ]
        norms.append(torch.stack([g.square().sum() for g in grads]).sum().sqrt().item())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    # Large initial weights, so that the targets have a share in the norm that shows.
    demo.config(
        num_hidden_layers=2, hidden_size=32, intermediate_size=48, initializer_range=0.3
    ).save_pretrained(tmp_path)
    demo.tokenizer().save_pretrained(tmp_path)
    records = _train(tiny, tmp_path / "out", model_name_or_path=str(tmp_path), osft=True, max_grad_norm=0.1)
    # Clipped first, the projection would leave less than the limit.
    assert norms == pytest.approx([0.1] * 3, rel=2e-6)
    assert all(r["grad_norm"] < r["grad_norm_raw"] * (1 - 1e-3) for r in records)


def test_eager_steps_in_a_compiled_run_are_marked_and_change_nothing(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = {"compile_scope": "block", "compile_backend": "eager", "max_steps": 7, "validation_split": 0.2}
    plain = _train(tiny, tmp_path / "a", **values)
    capfd.readouterr()
    sampled = _train(tiny, tmp_path / "b", measure_eager=2, **values)
    assert [r["step"] for r in sampled if r.get("eager")] == [5, 6, 7]
    _same(sampled, plain, 1e-7)
    assert "measured over 2 compiled and 2 eager steps: compiling gains" in capfd.readouterr().err
    validated = [r for r in sampled if "validation_graphs" in r]
    # the graph without gradients is the validation's, and no later step's
    assert [r["validation_graphs"] for r in validated] == [1] + [0] * (len(validated) - 1)
    assert [r["graphs"] for r in sampled] == [1] + [0] * 6
    assert validated[0]["validation_seconds"] > 0 and all(r["data_seconds"] >= 0 for r in sampled)
