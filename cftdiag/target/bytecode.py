"""The Python that Dynamo runs in a frame's place: decompiled by depyf where it can, disassembled where it
cannot.
"""

from __future__ import annotations

import contextlib
import dis
import io
import types
from collections.abc import Iterator
from typing import Any

from cftdiag.torch_private.dynamo import register_bytecode_hook


def source_of(code: types.CodeType) -> tuple[str, str]:
    """(``depyf`` or ``dis``, text). depyf fails on some frames of some torch versions; the disassembly then
    says why in its first line.
    """
    try:
        from depyf import decompile

        return "depyf", decompile(code)
    except Exception as error:  # noqa: BLE001 - a decompiler that gives up in any way leaves the disassembly
        text = io.StringIO()
        dis.dis(code, file=text)
        reason = " ".join(str(error).split())[:120]
        return (
            "dis",
            f"# depyf could not decompile this frame ({type(error).__name__}: {reason})\n{text.getvalue()}",
        )


@contextlib.contextmanager
def recorded() -> Iterator[list[dict[str, Any]]]:
    """Collects ``{function, file, line, by, text}`` of every frame that Dynamo translates inside the block."""
    frames: list[dict[str, Any]] = []

    def hook(old: types.CodeType, new: types.CodeType) -> None:
        by, text = source_of(new)
        frames.append(
            {
                "function": old.co_qualname,
                "file": old.co_filename,
                "line": old.co_firstlineno,
                "by": by,
                "text": text,
            }
        )

    handle = register_bytecode_hook(hook)
    try:
        yield frames
    finally:
        handle.remove()
