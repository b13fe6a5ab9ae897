"""Which blocks ran no graph, and what the metrics tell of a step's compiles."""

from __future__ import annotations

import monitor_samples as samples

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
