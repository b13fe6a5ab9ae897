"""What a check is doing while it works, on stderr: a status line on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from cftdiag.escape import escaped
from cftdiag.report.console import console_for, print_line, visible

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


#: Seconds between two lines on a stderr that is no terminal.
HEARTBEAT_S = 10.0


@contextlib.contextmanager
def progress(
    file: TextIO, *, quiet: bool = False, every_s: float = HEARTBEAT_S
) -> Iterator[Callable[[ProgressEvent], None]]:
    """A callback that shows what the check is doing until the block ends, with the seconds since its begin: a status
    line on a terminal, elsewhere a line every ``every_s`` seconds.
    """
    if quiet:
        yield lambda event: None
        return
    state = _State()
    shown = _on_terminal(file, state) if file.isatty() else _by_lines(file, state, every_s)
    with shown as update:

        def on_event(event: ProgressEvent) -> None:
            state.take(event)
            update(event)

        yield on_event


class _State:
    """What is being done now, over several events: a remedy's number stays while its passes run."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._remedy = ""
        self._doing = "starting"

    def take(self, event: ProgressEvent) -> None:
        if event.phase == "prove" and event.text:
            self._remedy = event.text
            self._doing = ""
        elif event.phase != "known":
            self._doing = words(event)

    def line(self) -> str:
        elapsed = int(time.monotonic() - self._started)
        return f"{elapsed} s: {': '.join(filter(None, [self._remedy, self._doing]))}"


@contextlib.contextmanager
def _on_terminal(file: TextIO, state: _State) -> Iterator[Callable[[ProgressEvent], None]]:
    console = console_for(file)

    class Line:
        """Drawn anew with each frame of the spinner, so that the seconds go on between two events."""

        def __rich__(self) -> Text:
            text = visible(state.line())
            text.truncate(max(console.width - 4, 20), overflow="ellipsis")
            return text

    with console.status(Line(), spinner="dots"):

        def update(event: ProgressEvent) -> None:
            if event.phase == "known":
                print_line(console, event.text)

        yield update


@contextlib.contextmanager
def _by_lines(file: TextIO, state: _State, every_s: float) -> Iterator[Callable[[ProgressEvent], None]]:
    stop = threading.Event()

    def tell(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # who reads it may have gone; the check has not
            file.write(f"cftdiag: {escaped(' '.join(text.split()))}\n")
            file.flush()

    def beat() -> None:
        while not stop.wait(every_s):
            tell(state.line())

    thread = threading.Thread(target=beat, name="cftdiag-heartbeat", daemon=True)
    thread.start()
    try:
        yield lambda event: tell(event.text) if event.phase == "known" else None
    finally:
        stop.set()
        thread.join()


def words(event: ProgressEvent) -> str:
    """``fullgraph pass: step 2 of 4, length 640``."""
    mode = _MODES.get(event.mode, event.mode)
    doing = event.text
    if not doing and event.phase == "build":
        doing = "building the model"
    elif not doing and event.phase in ("step", "compile"):
        doing = f"step {min(event.step, event.of)} of {event.of}" if event.of else f"step {event.step}"
        if event.length is not None:
            doing += f", length {event.length}"
        if event.phase == "compile":
            doing += ", compiling"
    elif not doing and event.phase == "prove":
        doing = "proving a remedy"
    return ": ".join(part for part in (mode, doing) if part) or event.phase
