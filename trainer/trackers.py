"""The metrics of a run in TensorBoard, Weights & Biases or MLflow. Nothing of them is imported unless asked
for, and none of them can stop a run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.monitor.sinks import Sink, TrackerSink
from cftdiag.monitor.trackers import MLflow, TensorBoard, Tracker, Wandb

#: Ids of the runs that a resumed training goes on with, in the output directory.
IDS = "trackers.json"


class Trackers:
    """The trackers asked for, on rank 0; a tracker that raises is told of once and left out from then on."""

    def __init__(
        self,
        names: Sequence[str],
        out: Path,
        settings: Mapping[str, Any],
        *,
        say: Callable[[str], None],
        resumed: bool = False,
    ) -> None:
        """``settings`` are the run's options; ``resumed`` goes on with the runs that the output directory
        names.
        """
        self._say = say
        self._open: dict[str, Tracker] = {}
        ids = _read_ids(out) if resumed else {}
        for name in dict.fromkeys(names):
            try:
                self._open[name] = _MAKE[name](out, settings, ids)
            except Exception as error:  # noqa: BLE001 - a server that does not answer is no reason not to train
                self._left_out(name, error)
        if ids and self._open:
            (out / IDS).write_text(json.dumps(ids))

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *exc: object) -> None:
        for name in list(self._open):
            self._call(name, "close")

    def write(self, record: Mapping[str, Any]) -> None:
        """One step's record, as it goes to ``metrics.jsonl``."""
        if self._open:
            scalars = scalars_of(record)
            for name in list(self._open):
                self._call(name, "log", record["step"], scalars, axis="train/step")

    def sinks(self) -> list[Sink]:
        """What the monitor writes its scalars and alarms to, so that they are beside the loss."""
        return [TrackerSink(_ByName(self, name), shared=True) for name in self._open]

    def _call(self, name: str, method: str, *args: Any, **more: Any) -> None:
        if name not in self._open:
            return
        try:
            getattr(self._open[name], method)(*args, **more)
        except Exception as error:  # noqa: BLE001 - a tracker that fails never stops training
            self._left_out(name, error)

    def _left_out(self, name: str, error: Exception) -> None:
        self._open.pop(name, None)
        self._say(
            f"tracker {name} is left out from here on: {type(error).__name__}: {' '.join(str(error).split())}"
        )


class _ByName:
    """One of the trackers for the monitor: where it fails it is left out for both."""

    def __init__(self, trackers: Trackers, name: str) -> None:
        self._trackers, self._name = trackers, name

    def log(self, step: int, scalars: Mapping[str, float], *, axis: str, commit: bool = True) -> None:
        self._trackers._call(self._name, "log", step, scalars, axis=axis, commit=commit)

    def alert(self, kind: str, message: str, step: int) -> None:
        self._trackers._call(self._name, "alert", kind, message, step)

    def close(self) -> None:
        self._trackers._call(self._name, "close")


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a step's record under ``train/`` (the validation loss: ``val/loss``); lists become
    counts, what was not measured is left out.
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        if key in ("step", "lengths") or value is None:
            continue
        if key == "val_loss":
            found["val/loss"] = value
        elif key == "memory":
            found["train/memory_peak_bytes"] = value["peak"]
        elif isinstance(value, list):
            found[f"train/{key}"] = len(value)
        elif isinstance(value, (int, float)) and math.isfinite(value):
            found[f"train/{key}"] = value
    return found


def _tensorboard(out: Path, settings: Mapping[str, Any], ids: dict[str, str]) -> Tracker:
    made = TensorBoard(out / "tensorboard")
    made.text("options", "\n".join(f"    {key}: {value}" for key, value in settings.items()))
    return made


def _wandb(out: Path, settings: Mapping[str, Any], ids: dict[str, str]) -> Tracker:
    # ``WANDB_MODE=offline`` keeps everything in the output directory; project, name and the rest are W&B's own
    # variables.
    out.mkdir(parents=True, exist_ok=True)
    made = Wandb(dir=str(out), config=dict(settings), id=ids.get("wandb"), resume="allow")
    ids["wandb"] = made.id
    return made


def _mlflow(out: Path, settings: Mapping[str, Any], ids: dict[str, str]) -> Tracker:
    made = MLflow(out, settings, ids.get("mlflow"))
    ids["mlflow"] = made.id
    return made


_MAKE: dict[str, Callable[[Path, Mapping[str, Any], dict[str, str]], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _read_ids(out: Path) -> dict[str, str]:
    try:
        return dict(json.loads((out / IDS).read_text()))
    except (OSError, ValueError):
        return {}
