"""TensorBoard, Weights & Biases and MLflow, each behind the same few calls. A package is imported when its
tracker is made, and ``ValueError`` says which one is missing.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

#: Tracker -> the package to install.
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}


class Tracker(Protocol):
    """What one tracker does. Calls may raise; whoever calls leaves it out then."""

    def log(self, step: int, scalars: Mapping[str, float], *, axis: str, commit: bool = True) -> None:
        """Figures of a step. ``axis`` names the step's own scale (``train/step``), for trackers that have
        several; without ``commit`` they may go out with the next call.
        """

    def alert(self, kind: str, message: str, step: int) -> None:
        """Something that a person should see."""

    def close(self) -> None:
        """The run ends."""


def require(names: Sequence[str], option: str = "--tracker") -> None:
    """Raise ``ValueError`` for a tracker whose package is not installed; imports nothing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"{option} {name} needs the package {name}, which is not installed; pip install {PACKAGES[name]}"
            )


class TensorBoard:
    """Event files in ``log_dir``."""

    def __init__(self, log_dir: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "TensorBoard scalars need the package tensorboard; pip install tensorboard"
            ) from error
        self._writer = SummaryWriter(str(log_dir))
        self._hook, self._before = self._hear, threading.excepthook
        threading.excepthook = self._hook

    def _hear(self, failed: threading.ExceptHookArgs) -> None:
        # What TensorBoard's own thread meets (a full disk) is raised again by the next call, which tells it.
        if not type(failed.thread).__module__.startswith("tensorboard."):
            self._before(failed)

    def text(self, name: str, text: str, step: int | None = None) -> None:
        """Keep a text beside the curves."""
        self._writer.add_text(name, text, step)

    def log(self, step: int, scalars: Mapping[str, float], *, axis: str, commit: bool = True) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def alert(self, kind: str, message: str, step: int) -> None:
        self.text(f"cftdiag/{kind}", message, step)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            if threading.excepthook is self._hook:
                threading.excepthook = self._before


class Wandb:
    """The run that is given, the one that the script has open, or a new one made with ``init``; only the last
    is finished here. Values go under their own step axis, so that the script's own logging keeps its steps.
    """

    def __init__(self, run: Any = None, **init: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ValueError("W&B logging needs the package wandb; pip install wandb") from error
        self._own = run is None and wandb.run is None
        self._run = run or wandb.run or wandb.init(**init)
        self._axes: dict[str, str] = {}

    @property
    def id(self) -> str:
        """By which the run is continued."""
        return self._run.id

    def log(self, step: int, scalars: Mapping[str, float], *, axis: str, commit: bool = True) -> None:
        for group in {name.partition("/")[0] for name in scalars}:
            if group not in self._axes:
                self._run.define_metric(f"{group}/*", step_metric=axis)
                self._axes[group] = axis
        # Without a commit the row goes out with the script's own next one, or at the end.
        self._run.log({**scalars, axis: step}, commit=commit and self._own)

    def alert(self, kind: str, message: str, step: int) -> None:
        # W&B alerts reach people by mail or Slack.
        self._run.alert(title=f"cftdiag: {kind}", text=message)

    def close(self) -> None:
        if self._own:
            self._run.finish()


class MLflow:
    """A run in ``MLFLOW_TRACKING_URI``, by default files in ``directory``."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], run: str | None = None) -> None:
        """``run`` is the id of one to continue; a new one is told ``settings``."""
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (directory / "mlruns").absolute().as_uri()
            # Newer MLflow refuses a store of files, which it no longer develops, unless told that it is
            # wanted.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient(uri)
        if run is not None:
            self.id: str = run
            self._client.update_run(run, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "trainer")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        self.id = self._client.create_run(experiment).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in settings.items()]
        self._client.log_batch(self.id, params=params)

    def log(self, step: int, scalars: Mapping[str, float], *, axis: str, commit: bool = True) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in scalars.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def alert(self, kind: str, message: str, step: int) -> None:
        self._client.set_tag(self.id, f"cftdiag.{kind}", message)

    def close(self) -> None:
        self._client.set_terminated(self.id)
