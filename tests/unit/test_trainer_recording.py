"""Which blocks ran no graph, and what the metrics tell of a step's compiles."""

from __future__ import annotations

import monitor_samples as samples

from cftdiag.events import Guard
from trainer import metrics
from trainer.recording import Recording

TEXT, VISION = ("text.layers.0", "text.layers.1"), ("vision.blocks.0", "vision.blocks.1")


def test_a_stack_that_is_never_called_is_no_eager_block() -> None:
    recording = Recording(rank=0)
    blocks = dict.fromkeys((*TEXT, *VISION))
    assert recording.eager_blocks(blocks) == [*TEXT, *VISION], "nothing ran: all of them"  # type: ignore[arg-type]
    recording.recorder.graphs["text.layers.0"] = {"0/0"}
    assert recording.eager_blocks(blocks) == ["text.layers.1"]  # type: ignore[arg-type]
    recording.recorder.graphs["text.layers.1"] = {"0/0"}
    assert recording.eager_blocks(blocks) == []  # type: ignore[arg-type]


def test_the_answers_of_the_compile_caches_are_counted_by_step() -> None:
    recording = Recording(rank=0)
    assert "caches" not in recording.step()
    answers = [("fx_graph", "hit"), ("fx_graph", "hit"), ("aotautograd", "miss")]
    recording.recorder.events.extend(
        samples.event("cache", detail={"cache": cache, "outcome": outcome}) for cache, outcome in answers
    )
    assert recording.step()["caches"] == {"fx_graph hit": 2, "aotautograd miss": 1}
    assert "caches" not in recording.step()


def test_a_miss_says_what_of_its_key_is_another() -> None:
    recording = Recording(rank=0)
    near = {"nearest": "0/0 of 2026-11-30 09:12", "differs": ["torch_version"]}
    recording.recorder.events.append(
        samples.event("cache", detail={"cache": "fx_graph", "outcome": "miss", **near})
    )
    step = recording.step()
    assert step["cache_misses"] == [{"cache": "fx_graph", "compile_id": "0/1", "block": "layers.0", **near}]
    record = {
        "step": 1,
        "loss": 1.0,
        "grad_norm": 1.0,
        "grad_norm_raw": 1.0,
        "lr": 1.0,
        "tokens_per_second": 1.0,
    }
    text = metrics.summary({**record, **step})
    assert text.endswith("missed fx_graph: differs from 0/0 of 2026-11-30 09:12 in torch_version")


def test_a_recompile_has_its_cause_and_what_a_cpu_has_of_its_own_is_told() -> None:
    recording = Recording(rank=0)
    expression = "1025 <= x.size()[1] <= 4096"
    guard = Guard(expression=expression, added="_inductor/codegen/cpp.py:2100 in need_use_acc_helper")
    recording.recorder.events += [samples.event("recompile", guard=guard), samples.event("recompile", step=2)]
    [on_cpu, anywhere] = recording.step()["recompiles"]
    assert on_cpu["cause"] == "inductor_size_regime" and "expected once on a CPU" in on_cpu["note"]
    assert anywhere["cause"] == "seq_len" and "note" not in anywhere
    record = {
        "step": 2, "loss": 1.0, "grad_norm": 1.0, "grad_norm_raw": 1.0, "lr": 1.0, "tokens_per_second": 1.0, "compile_seconds": 3.0,
    }  # fmt: skip
    text = metrics.summary({**record, "recompiles": [on_cpu]})
    assert f"1 recompiles: {expression}" in text and "(inductor_size_regime; expected once on a CPU" in text
    assert text.count("(") - 1 == metrics.summary(
        {**record, "recompiles": [{"reason": on_cpu["reason"]}]}
    ).count("(")
