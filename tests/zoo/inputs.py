"""Batches of any model class, from the signature of its forward, varied as in practice."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

IGNORE = -100
#: Schedules of (rows, length, padded) by step: several lengths, padding, a last partial batch, one row, in
#: different orders. A class gets one by its number. Three steps: each one that compiles costs as much as all before it.
SCHEDULES: tuple[tuple[tuple[int, int, bool], ...], ...] = (
    ((3, 24, False), (3, 37, True), (1, 19, False)),
    ((3, 37, True), (3, 24, True), (2, 53, False)),
    ((1, 24, False), (3, 31, True), (3, 45, False)),
    ((2, 40, False), (2, 33, True), (1, 52, False)),
)
#: Names of labels, and of what is learned beside them.
_CLASSES = ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """How the inputs of a class look, as far as its signature leaves it open."""

    labels: str
    media: str = ""
    placeholders: int = 0
    """Tokens in each row that stand for the features of its image or sound."""
    decoder: bool = False
    least_rows: int = 1

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def forms(task: str, parameters: Mapping[str, Any]) -> Iterator[Form]:
    """The forms that are possible, likely ones first."""
    labels = _label_forms(task, parameters)
    media = _media_forms(parameters)
    decoders = (False, True) if "decoder_input_ids" in parameters else (False,)
    for medium in media:
        for decoder in decoders:
            for label in labels:
                yield Form(labels=label, media=medium, decoder=decoder)


def _label_forms(task: str, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    if "start_positions" in parameters:
        return ("span", "none")
    if "labels" not in parameters:
        return ("none",)
    if task in _CLASSES:
        return ("class", "tokens", "none")
    if task in ("SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION"):
        return ("pixels", "none")
    if task in ("OBJECT_DETECTION", "INSTANCE_SEGMENTATION", "ZERO_SHOT_OBJECT_DETECTION"):
        return ("boxes", "none")
    if task in ("CTC", "SPEECH_SEQ_2_SEQ"):
        return ("target", "none")
    if task in ("MULTIPLE_CHOICE", "NEXT_SENTENCE_PREDICTION"):
        return ("class", "none")
    return ("tokens", "target", "class", "frames", "none")


def _media_forms(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    if "image_grid_thw" in parameters and "pixel_values" in parameters:
        return ("grid", "")
    if "pixel_values" in parameters:
        return ("image", "images", "video", "")
    if "pixel_values_videos" in parameters:
        return ("video", "")
    if "input_features" in parameters:
        return ("mel", "mel last", "mel 3000", "")
    if "input_values" in parameters:
        return ("wave", "mel last", "wave channel", "")
    return ("",)


class Inputs:
    """Makes the batches of one model. Reproducible: one generator, seeded by ``seed``."""

    def __init__(self, model: torch.nn.Module, task: str, form: Form, seed: int) -> None:
        self.config: Any = model.config
        self.parameters = inspect.signature(model.forward).parameters
        self.task, self.form = task, form
        self.generator = torch.Generator().manual_seed(seed)
        self.text = self.config.get_text_config()
        self.vocabulary = _first_int((self.text, self.config), "vocab_size", 64)
        self.special = set(_specials(self.config)) | set(_specials(self.text))

    def schedule(self, number: int) -> list[dict[str, Any]]:
        """One batch a step."""
        least = self.form.least_rows
        return [self.batch(max(least, r), n, p) for r, n, p in SCHEDULES[number % len(SCHEDULES)]]

    def batch(self, rows: int, length: int, padded: bool) -> dict[str, Any]:
        taken = self.parameters
        batch: dict[str, Any] = {}
        if "input_ids" in taken and "input_values" not in taken and self.form.media not in ("mel 3000",):
            batch |= self._text(rows, length, padded)
        if self.form.media:
            batch |= self._media(rows, length)
        if "past_values" in taken:
            batch |= self._series(rows)
        if "bbox" in taken:
            batch["bbox"] = torch.tensor([1, 2, 5, 8]).repeat(*batch["input_ids"].shape, 1)
        if "bool_masked_pos" in taken and self.task == "MASKED_IMAGE_MODELING":
            batch |= self._masked_patches(rows)
        if self.form.decoder:
            batch["decoder_input_ids"] = self._ids(rows, length // 2 + 3)
        batch |= self._labels(rows, length, batch)
        if "return_loss" in taken and self.form.labels == "none":
            batch["return_loss"] = True
        return batch

    # ---- text ----

    def _text(self, rows: int, length: int, padded: bool) -> dict[str, Any]:
        place = self._placeholder()
        ids = self._ids(rows, length)
        if place is not None and self.form.placeholders:
            row = torch.full((rows, self.form.placeholders), place)
            ids = torch.cat([ids[:, :2], row, ids[:, 2:]], dim=1)
        mask = torch.ones_like(ids)
        if padded:
            for row_index in range(rows):
                mask[row_index, ids.shape[1] - 3 * row_index - 1 :] = 0
        batch = {"input_ids": ids}
        if "attention_mask" in self.parameters:
            batch["attention_mask"] = mask
            pad = _first_int((self.text, self.config), "pad_token_id", -1)
            if pad >= 0:
                ids.masked_fill_(mask == 0, pad)
        if "mm_token_type_ids" in self.parameters:
            batch["mm_token_type_ids"] = (ids == place).long() if place is not None else torch.zeros_like(ids)
        if self.task == "MULTIPLE_CHOICE":
            batch = {k: v[:, None].repeat(1, 2, 1) for k, v in batch.items()}
        return batch

    def _ids(self, rows: int, length: int) -> torch.Tensor:
        plain = torch.tensor([i for i in range(self.vocabulary) if i not in self.special])
        return plain[torch.randint(0, len(plain), (rows, length), generator=self.generator)]

    def _placeholder(self) -> int | None:
        medium = "audio" if self.form.media.startswith(("mel", "wave")) else "image"
        for name in (f"{medium}_token_id", f"{medium}_token_index"):
            value = getattr(self.config, name, None)
            if isinstance(value, int):
                return value
        return None

    # ---- pictures and sound ----

    def _media(self, rows: int, length: int) -> dict[str, torch.Tensor]:
        form = self.form.media
        if form in ("image", "images", "video"):
            channels, height, width = self._picture()
            if form == "image":
                return {"pixel_values": self._noise(rows, channels, height, width)}
            if form == "images":
                return {"pixel_values": self._noise(rows, 1, channels, height, width)}
            frames = _first_int((self._vision(), self.config), "num_frames", 4)
            name = "pixel_values" if "pixel_values" in self.parameters else "pixel_values_videos"
            return {name: self._noise(rows, frames, channels, height, width)}
        if form == "grid":
            vision = self._vision()
            patch = _first_int((vision,), "patch_size", 14)
            time = _first_int((vision,), "temporal_patch_size", 1)
            channels = _first_int((vision,), ("in_channels", "in_chans", "num_channels"), 3)
            grid = torch.tensor([[1, 4, 4]] * rows)
            values = self._noise(rows * 16, channels * time * patch * patch)
            return {"pixel_values": values, "image_grid_thw": grid}
        if form.startswith("mel"):
            name = "input_features" if "input_features" in self.parameters else "input_values"
            audio = self._audio()
            bins = _first_int(
                (audio, self.config),
                ("num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", "input_dim"),
                80,
            )
            if form == "mel":
                frames = 8 * length
                return {name: self._noise(rows, bins, frames)}
            if form == "mel 3000":
                positions = _first_int((audio, self.config), "max_source_positions", 1500)
                return {name: self._noise(rows, bins, 2 * positions)}
            frames = _first_int((audio, self.config), "max_length", 4 * length)
            return {name: self._noise(rows, frames, bins)}
        samples = 320 * length
        wave = self._noise(rows, samples)
        return {"input_values": wave[:, None] if form == "wave channel" else wave}

    def _series(self, rows: int) -> dict[str, torch.Tensor]:
        """Past and future of a time series."""
        channels = _first_int((self.config,), "num_input_channels", 1)
        past = self._noise(rows, _first_int((self.config,), "context_length", 32), channels)
        future = self._noise(rows, _first_int((self.config,), "prediction_length", 8), channels)
        names = [n for n in ("future_values", "target_values") if n in self.parameters]
        return {"past_values": past, **dict.fromkeys(names, future)}

    def _picture(self) -> tuple[int, int, int]:
        vision = self._vision()
        size = getattr(vision, "image_size", None) or getattr(self.config, "image_size", None) or 64
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return (
            _first_int((vision, self.config), ("num_channels", "in_channels", "in_chans"), 3),
            height,
            width,
        )

    def _vision(self) -> Any:
        for name in ("vision_config", "encoder", "backbone_config", "image_encoder_config"):
            sub = getattr(self.config, name, None)
            if hasattr(sub, "to_dict"):
                return sub
        return self.config

    def _audio(self) -> Any:
        for name in ("audio_config", "speech_config", "encoder_config", "audio_encoder_config"):
            sub = getattr(self.config, name, None)
            if hasattr(sub, "to_dict"):
                return sub
        return self.config

    def _noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def _masked_patches(self, rows: int) -> dict[str, torch.Tensor]:
        _, height, width = self._picture()
        patch = _first_int((self._vision(), self.config), "patch_size", 16)
        patches = (height // patch) * (width // patch)
        return {"bool_masked_pos": torch.rand(rows, patches, generator=self.generator) < 0.4}

    # ---- labels ----

    def _labels(self, rows: int, length: int, batch: Mapping[str, Any]) -> dict[str, Any]:
        kind = self.form.labels
        classes = max(2, _first_int((self.config,), "num_labels", 2))
        if kind == "tokens" and "input_ids" in batch:
            labels = batch["input_ids"].clone()
            labels = labels % classes if self.task == "TOKEN_CLASSIFICATION" else labels
            if "attention_mask" in batch:
                labels[batch["attention_mask"] == 0] = IGNORE
            return {"labels": labels}
        if kind in ("tokens", "target"):
            return {"labels": self._ids(rows, max(2, length // 3))}
        if kind == "frames":
            return {"labels": self._noise(rows, length, 80)}
        if kind == "class":
            return {"labels": torch.randint(0, classes, (rows,), generator=self.generator)}
        if kind == "span":
            return {"start_positions": torch.full((rows,), 2), "end_positions": torch.full((rows,), 5)}
        if kind == "pixels":
            _, height, width = self._picture()
            if self.task == "DEPTH_ESTIMATION":
                return {"labels": self._noise(rows, height, width).abs()}
            return {"labels": torch.randint(0, classes, (rows, height, width), generator=self.generator)}
        if kind == "boxes":
            # a number of objects that differs from row to row, as in any detection data
            return {
                "labels": [
                    {
                        "class_labels": torch.arange(1 + i % 2) % classes,
                        "boxes": torch.tensor([[0.5, 0.5, 0.3, 0.3]] * (1 + i % 2)),
                    }
                    for i in range(rows)
                ]
            }
        return {}


_FEATURES = re.compile(r"tokens?: (\d+)[^0-9]+features?:? (\d+)|(\d+) (?:image |audio )?tokens.*?(\d+)", re.I)


def placeholders(error: str, rows: int) -> int | None:
    """How many placeholders each row needs, as transformers says when their number is wrong."""
    found = _FEATURES.search(error)
    if found is None:
        return None
    features = int(found[2] or found[4])
    return features // rows if features and features % rows == 0 else None


def _specials(config: Any) -> Iterator[int]:
    for name, value in vars(config).items():
        if re.search(r"token_(id|index)s?$|_index$", name):
            yield from (v for v in (value if isinstance(value, (list, tuple)) else [value]) if type(v) is int)


def _first_int(configs: tuple[Any, ...], names: str | tuple[str, ...], default: int) -> int:
    for config in configs:
        for name in (names,) if isinstance(names, str) else names:
            value = getattr(config, name, None)
            if type(value) is int:
                return value
    return default
