"""Experiment trackers and hubs: what they write stays in the scratch folder, what they would send is not sent."""

from __future__ import annotations

import os
import types
from types import ModuleType
from typing import Any

from cftdiag.rehearse.import_hooks import after_import
from cftdiag.rehearse.overlay import Overlay

#: Set in the environment of every rehearsed process.
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
}

#: Methods of huggingface_hub's ``HfApi`` that change something on the hub.
_SENDING = (
    "create_branch",
    "create_commit",
    "create_pull_request",
    "create_repo",
    "create_tag",
    "delete_file",
    "delete_folder",
    "delete_repo",
    "preupload_lfs_files",
    "super_squash_history",
    "update_repo_settings",
    "upload_file",
    "upload_folder",
    "upload_large_folder",
)


def environment(scratch: str) -> dict[str, str]:
    """Variables that keep trackers at home."""
    folder = os.path.join(scratch, "trackers")
    return {
        **OFFLINE,
        "WANDB_DIR": folder,
        "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
        "TRACKIO_DIR": os.path.join(folder, "trackio"),
    }


def install(overlay: Overlay) -> None:
    """Keep this process from sending anything to a hub."""
    after_import("huggingface_hub.hf_api", _silence_hub)


def _silence_hub(module: ModuleType) -> None:
    for name in _SENDING:
        if hasattr(module.HfApi, name):
            setattr(module.HfApi, name, _not_sent)
        if callable(getattr(module, name, None)):
            setattr(module, name, getattr(module.api, name))


def _not_sent(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for every method that changes something on the hub."""
    repo = kwargs.get("repo_id") or next((a for a in args if isinstance(a, str)), "rehearsal/not-sent")
    return types.SimpleNamespace(
        repo_id=repo, url="", commit_url="", oid="0" * 40, pr_url=None, path_in_repo=""
    )
