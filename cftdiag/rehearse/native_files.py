"""Files that native code opens by their names, mapped onto the overlay: tokenizers, safetensors, Arrow, databases,
torch's memory-mapped checkpoints and traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from cftdiag.rehearse.import_hooks import after_import
from cftdiag.rehearse.overlay import Overlay

#: Module -> what it opens: a dotted name, the position and the name of the path, whether it is written. What may
#: be changed in place counts as written, and is there before.
_OPENING: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "tokenizers": (("Tokenizer.save", 1, "path", True), ("Tokenizer.from_file", 0, "path", False)),
    "safetensors": (("safe_open", 0, "filename", False), ("serialize_file", 1, "filename", True)),
    "pyarrow": (("memory_map", 0, "path", False),),
    "pyarrow.parquet": (("write_table", 1, "where", True), ("read_table", 0, "source", False)),
    "sqlite3.dbapi2": (("connect", 0, "database", True),),
    "h5py": (("File.__init__", 1, "name", True),),
    "torch": (("load", 0, "f", False), ("from_file", 0, "filename", True)),
    "torch.profiler.profiler": (("profile.export_chrome_trace", 1, "path", True),),
    "torch.autograd.profiler": (("profile.export_chrome_trace", 1, "path", True),),
}


def install(overlay: Overlay) -> None:
    """Wait for the modules that open files so."""
    for module in _OPENING:
        after_import(module, functools.partial(_map, overlay))


def _map(overlay: Overlay, module: ModuleType) -> None:
    for dotted, position, name, writes in _OPENING[module.__name__]:
        owner, _, attribute = dotted.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        real = getattr(holder, attribute, None)
        if real is None:
            continue  # another version
        opening = _opening(overlay, real, position, name, writes)
        # Python's descriptors bind a plain function, and from_file has no self
        static = owner and attribute.startswith("from_")
        setattr(holder, attribute, staticmethod(opening) if static else opening)


def _opening(
    overlay: Overlay, real: Callable[..., Any], position: int, name: str, writes: bool
) -> Callable[..., Any]:
    def mapped(value: Any) -> Any:
        absolute = (
            overlay.path(value) if isinstance(value, str | bytes) or hasattr(value, "__fspath__") else None
        )
        if absolute is None or value == ":memory:":
            return value
        return overlay.write(absolute, keep=True) if writes else overlay.read(absolute)

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], mapped(args[position]), *args[position + 1 :])
        elif name in kwargs:
            kwargs[name] = mapped(kwargs[name])
        return real(*args, **kwargs)

    return call
