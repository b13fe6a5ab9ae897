"""Checkpoints without weights: what is saved has the shapes of what would be saved and next to none of its
bytes.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from types import ModuleType
from typing import Any

import torch

from cftdiag.fastforward import SKIPPED, status
from cftdiag.rehearse.import_hooks import after_import
from cftdiag.torch_private.tracing import tree_map

#: Tensors of fewer bytes are written as they are.
_SMALL = 1 << 16


def install(*, here: bool) -> None:
    """Replace ``torch.save``, ``torch.load`` and safetensors' writer; ``here``: what was saved on a device is loaded
    to this machine's memory.
    """
    _replace_load(here)
    if here:
        after_import("safetensors", _open_here)
        after_import("torch.distributed.checkpoint.staging", _stage_here)
    real = torch.save

    @functools.wraps(real)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            # torch's own writer is native code and would go past the overlay
            with open(f, "wb") as stream:
                real(hollow(obj), stream, *args, **kwargs)
        else:
            real(hollow(obj), f, *args, **kwargs)

    torch.save = save
    torch.serialization.save = save
    after_import("safetensors.torch", _replace_writer)


def _replace_load(here: bool) -> None:
    real = torch.load

    @functools.wraps(real)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if here and str(map_location) != "meta":
            map_location = "cpu"
        if isinstance(f, str | os.PathLike) and kwargs.get("mmap") is None and _is_archive(f):
            # weights that are not computed with are not read either
            kwargs["mmap"] = True
        return real(f, map_location, *args, **kwargs)

    torch.load = load
    torch.serialization.load = load


def _open_here(module: ModuleType) -> None:
    """Read safetensors to this machine's memory, whatever device is named."""
    real = module.safe_open

    @functools.wraps(real, updated=())
    def safe_open(filename: Any, framework: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        return real(filename, framework=framework, device="cpu", **kwargs)

    module.__dict__["safe_open"] = safe_open


def _stage_here(module: ModuleType) -> None:
    """Copy what an asynchronous checkpoint stages within this machine's memory: nothing is pinned for a device that only
    answers.
    """
    plain = module.StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    real = module.DefaultStager.__init__

    @functools.wraps(real)
    def initialise(self: Any, config: Any = plain) -> None:
        real(self, plain)

    module.DefaultStager.__init__ = initialise


def _is_archive(path: Any) -> bool:
    """True for the format of torch.save that can be mapped into memory."""
    try:
        with open(path, "rb") as stream:
            return stream.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def hollow(tree: Any) -> Any:
    """The same object with every uncomputed tensor standing on one element; shapes and dtypes stay."""
    return tree_map(_hollow, tree)


def _hollow(value: Any) -> Any:
    if not _uncomputed(value):
        return value
    return torch.zeros((), dtype=value.dtype).expand(value.shape)


def _uncomputed(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.numel() * value.element_size() > _SMALL
        and status(value) == SKIPPED
    )


def _replace_writer(module: ModuleType) -> None:
    names = {dtype: name for name, dtype in module._TYPES.items()}
    real = module.save_file

    @functools.wraps(real)
    def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        sparse(tensors, os.fspath(filename), metadata, names)

    module.__dict__["save_file"] = save_file


def sparse(
    tensors: dict[str, torch.Tensor], filename: str, metadata: Any, names: dict[torch.dtype, str]
) -> None:
    """Write a safetensors file whose uncomputed tensors are holes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        start = stream.tell()
        for name, tensor in tensors.items():
            if not _uncomputed(tensor):
                stream.seek(start + header[name]["data_offsets"][0])
                plain = tensor.detach().contiguous()
                stream.write(ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()))
        stream.truncate(start + end)
