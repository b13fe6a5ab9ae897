"""Which model classes there are: everything that transformers' own mappings can train, by family.

Imports nothing of ours: the truth is taken in a process that has none of it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from typing import Any

#: Family -> mappings of ``transformers.models.auto.modeling_auto`` that hold its classes, in this order.
#: The first mapping that names a class decides on its family.
FAMILIES: dict[str, tuple[str, ...]] = {
    "causal": ("CAUSAL_LM",),
    "masked": ("MASKED_LM",),
    "seq2seq": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "vision": (
        "IMAGE_CLASSIFICATION",
        "VIDEO_CLASSIFICATION",
        "SEMANTIC_SEGMENTATION",
        "DEPTH_ESTIMATION",
        "UNIVERSAL_SEGMENTATION",
        "INSTANCE_SEGMENTATION",
        "OBJECT_DETECTION",
        "MASKED_IMAGE_MODELING",
        "CAUSAL_IMAGE_MODELING",
        "IMAGE_TO_IMAGE",
    ),
    "audio": (
        "CTC",
        "AUDIO_CLASSIFICATION",
        "AUDIO_FRAME_CLASSIFICATION",
        "AUDIO_XVECTOR",
        "SPEECH_SEQ_2_SEQ",
        "TEXT_TO_SPECTROGRAM",
        "TEXT_TO_WAVEFORM",
    ),
    "multimodal": (
        "IMAGE_TEXT_TO_TEXT",
        "MULTIMODAL_LM",
        "ZERO_SHOT_IMAGE_CLASSIFICATION",
        "ZERO_SHOT_OBJECT_DETECTION",
        "VISUAL_QUESTION_ANSWERING",
        "DOCUMENT_QUESTION_ANSWERING",
    ),
    "heads": (
        "SEQUENCE_CLASSIFICATION",
        "TOKEN_CLASSIFICATION",
        "QUESTION_ANSWERING",
        "MULTIPLE_CHOICE",
        "NEXT_SENTENCE_PREDICTION",
        "TIME_SERIES_PREDICTION",
        "TIME_SERIES_REGRESSION",
        "TIME_SERIES_CLASSIFICATION",
        "DECISION",
        "PRETRAINING",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One model class. ``task`` is the mapping that names it, ``model_type`` its configuration's."""

    family: str
    task: str
    model_type: str
    cls: str

    def to_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)

    @property
    def number(self) -> int:
        """A number that depends on the name alone: which schedule of batches it gets, which sample it is in."""
        return zlib.crc32(self.cls.encode())

    @property
    def dynamic(self) -> str:
        """``dynamic`` of the compile: torch's default, or True for one class of three."""
        return "true" if self.number // 12 % 3 == 0 else "auto"

    @property
    def depth(self) -> str:
        """How deep the compiles go: Dynamo's tracing decides what is compiled when, and costs a fifth of what the
        forward and backward graphs cost, which one class of eight has as well.
        """
        return "joint" if self.number % 8 == 0 else "trace"


def entries() -> list[Entry]:
    """Every class once, in an order that meets new architectures early: families in turn, and of each family
    first one class for each model type that has not been met.
    """
    by_family = {family: list(_family(family)) for family in FAMILIES}
    taken: set[str] = set()
    classes: set[str] = set()
    first: dict[str, list[Entry]] = {}
    later: dict[str, list[Entry]] = {}
    for family, found in by_family.items():
        first[family], later[family] = [], []
        for entry in sorted(found, key=lambda e: e.number):
            if entry.cls not in classes:
                classes.add(entry.cls)
                (later if entry.model_type in taken else first)[family].append(entry)
        taken |= {entry.model_type for entry in found}
    return [*_in_turn(first), *_in_turn(later)]


def _family(family: str) -> Iterator[Entry]:
    from transformers.models.auto import modeling_auto

    for task in FAMILIES[family]:
        mapping: Any = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
        for model_type, names in mapping.items():
            for name in (names,) if isinstance(names, str) else names:
                yield Entry(family=family, task=task, model_type=model_type, cls=name)


def _in_turn(queues: dict[str, list[Entry]]) -> list[Entry]:
    """One of each queue in turn until all are empty."""
    longest = max(map(len, queues.values()))
    return [queue[i] for i in range(longest) for queue in queues.values() if i < len(queue)]
