"""Which blocks ran no graph."""

from __future__ import annotations

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
