"""A directory of compiled code packed into one file of artifacts, for other nodes, and such a file laid out as a
directory. Needs torch, whose own form the artifacts have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from cftdiag import artifacts, cache_folder
from cftdiag.errors import InputError

#: Suffix of what autotuning chose for a kernel.
_CHOICE = ".best_config"


def device() -> str | None:
    """The accelerator that code is generated for here; None for the CPU."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def pack(folder: Path, file: Path) -> artifacts.Head:
    """Write what ``folder`` (a TORCHINDUCTOR_CACHE_DIR) holds of FX graphs, AOTAutograd entries and autotuning into
    ``file``, which :func:`unpack` and the trainer's ``--compile-cache`` load. Generated code and Triton's kernels
    travel inside the graphs that use them. Returns the head of the file.

    Raises :class:`InputError` for a directory that is not there, is empty, or that others can write, and
    ``OSError`` for a file that cannot be written.
    """
    from cftdiag.torch_private.cache_artifacts import (
        record_artifact,
        register_artifacts,
        serialize,
        with_fresh_cache,
    )

    try:
        found = cache_folder.read(folder)
    except ValueError as error:
        raise InputError(str(error)) from error
    if found.foreign:
        raise InputError(
            f"others can write {found.foreign[0]} and put code into it; run chmod -R go-w {folder} once you know what is there"
        )
    register_artifacts()
    with with_fresh_cache():
        for kind, key, content in _entries(folder):
            record_artifact(kind, key, content)
        saved = serialize()
    if saved is None:
        raise InputError(
            f"{folder}: holds no FX graph and no AOTAutograd entry; fill it by a run with Inductor first"
        )
    data, info = saved
    counts = {str(kind): len(keys) for kind, keys in info.artifacts.items()}
    artifacts.write(file, data, counts, artifacts.fingerprint(device()))
    return artifacts.read_head(file)


def unpack(file: Path, folder: Path) -> artifacts.Head:
    """Lay ``file`` out in ``folder``, beside what is there, so that a run with ``TORCHINDUCTOR_CACHE_DIR=folder``
    hits. Returns the head of the file.

    Raises :class:`artifacts.Unusable` for a file that is damaged, that others can write, or of which nothing would
    hit here, and ``OSError`` for a directory that cannot be made.
    """
    import torch

    head, data = artifacts.read(file)
    differs = head.differs(artifacts.fingerprint(device()))
    if differs:
        said = ", ".join(f"{name} {there} there, {here} here" for name, (there, here) in differs.items())
        raise artifacts.Unusable(f"{file}: nothing of it would hit here ({said})")
    folder.mkdir(parents=True, exist_ok=True)
    with mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(folder.absolute())):
        if torch.compiler.load_cache_artifacts(data) is None:
            raise artifacts.Unusable(f"{file}: this torch cannot read it; pack it again")
    return head


def _entries(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """(kind, key, content) of each entry, in an order that is the same every time."""
    for kind, pattern in (("inductor", "fxgraph/*/*/*"), ("aot_autograd", "aotautograd/*/*")):
        for file in sorted(folder.glob(pattern)):
            # a file that begins with a dot is one that is being written
            if file.is_file() and not file.name.startswith("."):
                yield kind, file.parent.name, file.read_bytes()
    for file in sorted(folder.glob(f"*/*{_CHOICE}")):
        try:
            yield "autotune", f"{file.parent.name}/{file.name}", json.loads(file.read_bytes())
        except ValueError:
            continue  # half written: autotuning chooses again
