"""The metrics of a run in TensorBoard, Weights & Biases or MLflow. Nothing of them is imported unless asked
for, and none of them can stop a run.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cftdiag.monitor.sinks import Sink

#: Ids of the runs that a resumed training goes on with, in the output directory.
IDS = "trackers.json"


class Tracker(Protocol):
    """What one tracker does."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """The figures of one optimizer step."""

    def close(self) -> None:
        """The run ends."""


def require(names: Sequence[str]) -> None:
    """Raise ``ValueError`` for a tracker whose package is not installed; imports nothing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"--tracker {name} needs the package {name}, which is not installed; pip install {_PACKAGE[name]}"
            )


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
                self._call(name, "log", record["step"], scalars)

    def sinks(self) -> list[Sink]:
        """What the monitor writes its scalars and alarms to, so that they are beside the loss."""
        found = []
        for name, tracker in self._open.items():
            make = getattr(tracker, "sink", None)
            if make is not None:
                try:
                    found.append(make())
                except Exception as error:  # noqa: BLE001 - as above
                    self._say(f"tracker {name}: no alarms of the monitor ({type(error).__name__}: {error})")
        return found

    def _call(self, name: str, method: str, *args: Any) -> None:
        try:
            getattr(self._open[name], method)(*args)
        except Exception as error:  # noqa: BLE001 - a tracker that fails never stops training
            self._left_out(name, error)

    def _left_out(self, name: str, error: Exception) -> None:
        self._open.pop(name, None)
        self._say(
            f"tracker {name} is left out from here on: {type(error).__name__}: {' '.join(str(error).split())}"
        )


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


class _TensorBoard:
    def __init__(self, out: Path, settings: Mapping[str, Any], ids: dict[str, str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory = str(out / "tensorboard")
        self._writer = SummaryWriter(self._directory)
        self._writer.add_text("options", "\n".join(f"    {key}: {value}" for key, value in settings.items()))

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()

    def sink(self) -> Sink:
        from cftdiag.monitor.sinks import TensorBoardSink

        return TensorBoardSink(self._directory)


class _Wandb:
    """``WANDB_MODE=offline`` keeps everything in the output directory; project, name and the rest are W&B's
    own variables.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], ids: dict[str, str]) -> None:
        import wandb

        out.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(dir=str(out), config=dict(settings), id=ids.get("wandb"), resume="allow")
        self._run.define_metric("train/*", step_metric="train/step")
        self._run.define_metric("val/*", step_metric="train/step")
        ids["wandb"] = self._run.id

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log({**scalars, "train/step": step})

    def close(self) -> None:
        self._run.finish()

    def sink(self) -> Sink:
        from cftdiag.monitor.sinks import WandbSink

        return WandbSink(self._run)


class _MLflow:
    """Into ``MLFLOW_TRACKING_URI``, by default files in the output directory."""

    def __init__(self, out: Path, settings: Mapping[str, Any], ids: dict[str, str]) -> None:
        import os

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (out / "mlruns").absolute().as_uri()
            # Newer MLflow refuses a store of files, which it no longer develops, unless told that it is
            # wanted.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient(uri)
        if "mlflow" in ids:
            self._run = ids["mlflow"]
            self._client.update_run(self._run, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "trainer")
        experiment = self._client.get_experiment_by_name(name)
        self._run = self._client.create_run(
            experiment.experiment_id if experiment else self._client.create_experiment(name)
        ).info.run_id
        self._client.log_batch(
            self._run, params=[Param(key, str(value)[:500]) for key, value in settings.items()]
        )
        ids["mlflow"] = self._run

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        import time

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run, metrics=[self._metric(name, value, now, step) for name, value in scalars.items()]
        )

    def close(self) -> None:
        self._client.set_terminated(self._run)


_MAKE: dict[str, Callable[[Path, Mapping[str, Any], dict[str, str]], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "mlflow": _MLflow,
}
_PACKAGE = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}


def _read_ids(out: Path) -> dict[str, str]:
    try:
        return dict(json.loads((out / IDS).read_text()))
    except (OSError, ValueError):
        return {}
