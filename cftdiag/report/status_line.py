"""A status line on stderr while a check works; nothing where stderr is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from cftdiag.report.console import console_for

if TYPE_CHECKING:
    from cftdiag.check import ProgressEvent

_MODES = {
    "fullgraph": "fullgraph pass",
    "collect": "collecting graph breaks",
    "eager": "running without torch.compile",
    "auto": "first pass",
    "reference": "running without torch.compile",
    "numerics": "comparing with eager",
    "rehearsing": "rehearsing",
}


@contextlib.contextmanager
def progress(file: TextIO, *, quiet: bool = False) -> Iterator[Callable[[ProgressEvent], None]]:
    """A callback that shows what the check is doing until the block ends."""
    if quiet or not file.isatty():
        yield lambda event: None
        return
    console = console_for(file)
    with console.status("starting", spinner="dots") as status:
        # Text, because a plain string would be read as markup
        yield lambda event: status.update(Text(words(event)))


def words(event: ProgressEvent) -> str:
    """``fullgraph pass: step 2 of 4, length 640``."""
    mode = _MODES.get(event.mode, event.mode)
    doing = event.text
    if not doing and event.phase == "build":
        doing = "building the model"
    elif not doing and event.phase in ("step", "compile"):
        doing = f"step {event.step} of {event.of}" if event.of else f"step {event.step}"
        if event.length is not None:
            doing += f", length {event.length}"
        if event.phase == "compile":
            doing += ", compiling"
    elif not doing and event.phase == "prove":
        doing = "proving a remedy"
    return ": ".join(part for part in (mode, doing) if part) or event.phase
