"""Events of ranks that do not share a directory, brought to rank 0 through torch's TCPStore.

The store that the process group met at is used with a client of its own, from a thread of its own: no
collective, nothing in the training's path. A rank posts its lines under ``cftdiag/<rank>/<n>``; rank 0 takes
them out again and appends them to its own run directory.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cftdiag.monitor import process_info, rundir
from cftdiag.monitor.journal import STATE

TOKEN_FILE = ".token"
#: Lines waiting to be sent; more than that and the oldest training is not held up: lines are dropped.
QUEUE = 10_000
POLL_S = 0.5
#: Seconds that the other side is waited for: a late rank, or the last lines at the end.
PATIENCE_S = 60.0
DRAIN_S = 5.0


def outlet(directory: Path, mode: str, warn: Callable[[str], None]) -> Outlet | None:
    """The exchange of this rank; None where every rank can write into ``directory``.

    ``auto`` asks the store only when ranks run on several hosts, then finds out whether they see one
    directory by a file that rank 0 leaves there.
    """
    world = process_info.world_size()
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if (
        mode == "none"
        or world < 2
        or (mode == "auto" and local.isdigit() and int(local) >= world)
        or "MASTER_ADDR" not in os.environ
    ):
        return None
    directory.mkdir(parents=True, exist_ok=True)
    return Outlet(directory, process_info.rank(), world, ask=mode == "auto", warn=warn)


class Outlet:
    """One rank's side of the exchange."""

    def __init__(
        self, directory: Path, rank: int, world: int, *, ask: bool, warn: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._rank = rank
        self._world = world
        self._ask = ask
        self._warn = warn
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUE)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cftdiag-exchange", daemon=True)
        self._thread.start()

    def send(self, line: str) -> None:
        """Post a line; never waits."""
        if self._rank and self._thread.is_alive():
            # A full queue means that the store is gone or slower than the events: the rank's own file has
            # them.
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(line)

    def close(self) -> None:
        """Send or take what is left, for a few seconds at most."""
        self._closing.set()
        self._thread.join(DRAIN_S + 1)

    def _run(self) -> None:
        try:
            store = self._connect()
            if self._rank == 0:
                self._serve(store)
            else:
                self._post(store)
        except Exception as error:  # noqa: BLE001 - the store lives in another process that may end at any time
            if not self._closing.is_set():
                self._warn(
                    f"no exchange with the other ranks ({type(error).__name__}: {error}); each keeps its own events"
                )

    def _connect(self) -> Any:
        from torch.distributed import PrefixStore, TCPStore

        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(
            host, port, None, False, timeout=datetime.timedelta(seconds=PATIENCE_S), wait_for_workers=False
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return PrefixStore(f"cftdiag/{attempt}", store)

    def _post(self, store: Any) -> None:
        if self._ask and self._shared(store.get("token").decode()):
            return
        sent = 0
        deadline = None
        while True:
            if self._closing.is_set():
                deadline = deadline or time.monotonic() + DRAIN_S
            try:
                lines = [self._queue.get(timeout=POLL_S if deadline is None else 0.01)]
            except queue.Empty:
                if deadline is not None:
                    store.set(f"{self._rank}/done", str(sent))
                    return
                continue
            while len(lines) < 500:
                try:
                    lines.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            store.set(f"{self._rank}/{sent}", "".join(line for line in lines if line))
            sent = store.add(f"{self._rank}/sent", 1)
            if deadline is not None and time.monotonic() > deadline:
                return

    def _shared(self, token: str) -> bool:
        try:
            return (self._directory / TOKEN_FILE).read_text(encoding="utf-8") == token
        except OSError:
            return False

    def _serve(self, store: Any) -> None:
        token = uuid.uuid4().hex
        (self._directory / TOKEN_FILE).write_text(token, encoding="utf-8")
        store.set("token", token)
        taken = [0] * self._world
        events = self._directory / rundir.EVENTS
        files = {
            rank: rundir.Lines(events / f"{rundir.rank_name(rank)}.jsonl", self._warn)
            for rank in range(1, self._world)
        }
        deadline = None
        while deadline is None or time.monotonic() < deadline:
            if self._closing.wait(0.05 if deadline is not None else POLL_S):
                deadline = deadline or time.monotonic() + DRAIN_S
            for rank, file in files.items():
                for number in range(taken[rank], store.add(f"{rank}/sent", 0)):
                    self._take(rank, store.get(f"{rank}/{number}").decode(), file)
                    store.delete_key(f"{rank}/{number}")
                    taken[rank] = number + 1
            if deadline is not None and all(self._done(store, rank, taken[rank]) for rank in files):
                return

    def _take(self, rank: int, text: str, file: rundir.Lines) -> None:
        lines = text.splitlines(keepends=True)
        events = "".join(line for line in lines if not line.startswith(STATE))
        if events:
            file.write(events)
        states = [line for line in lines if line.startswith(STATE)]
        if states:
            rundir.write_json(
                self._directory / rundir.RANKS / f"{rundir.rank_name(rank)}.json",
                json.loads(states[-1].removeprefix(STATE)),
            )

    def _done(self, store: Any, rank: int, taken: int) -> bool:
        return bool(store.check([f"{rank}/done"])) and int(store.get(f"{rank}/done")) <= taken
