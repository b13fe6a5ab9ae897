"""One run at a time in an output directory: a lock file that says who, and that outlives no dead process.

The file is made by a hard link, which is exclusive on NFS too, and holds host, process and start. A process of
this machine is looked up; of one elsewhere only its heartbeat is known: the file's time moves as long as it
lives. Clocks are never compared, only whether that time changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

NAME = "trainer.lock"
BEAT = 10.0
"""Seconds between two heartbeats."""
PATIENCE = 60.0
"""Seconds without a heartbeat after which a process of another machine counts as dead."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who writes into a directory."""

    host: str
    pid: int
    started: str
    """Time of the lock, for people."""
    token: str
    """Unlike that of every other lock."""
    machine: str
    """Boot of the kernel and namespace of processes in which ``pid`` means something; empty where unknown."""
    birth: int
    """Start of the process in ticks since boot; a number is given to another process later. 0 where unknown."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"

    @classmethod
    def here(cls) -> Holder:
        """This process."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(
            host=socket.gethostname(), pid=os.getpid(), started=now, token=uuid.uuid4().hex, machine=_machine(),
            birth=_birth(os.getpid()) or 0,
        )  # fmt: skip

    def alive(self) -> bool | None:
        """Whether its process runs; None for a process that cannot be looked up from here."""
        if not self.machine or self.machine != _machine():
            return None
        birth = _birth(self.pid)
        return birth is not None and birth == self.birth


class InUse(ValueError):
    """Another process holds it."""


class Lock:
    """Held while entered. Raises :class:`InUse` when another run holds it, in one line."""

    def __init__(
        self,
        directory: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        beat: float = BEAT,
        patience: float = PATIENCE,
    ) -> None:
        """``say`` is told of a dead run's lock that is taken over."""
        self.path = directory / NAME
        self.lost: str | None = None
        """Who has taken it from this process; None as a rule."""
        self._say, self._beat, self._patience = say, beat, patience
        self._me = Holder.here()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="output-lock", daemon=True)

    def __enter__(self) -> Lock:
        while not self._make(self.path):
            there = _read(self.path)
            if there is None:
                continue  # it went away meanwhile
            holder, _ = there
            if not self._dead(holder):
                raise InUse(
                    f"{self.path.parent} is in use by another run ({holder}); wait for it, stop it, or give another "
                    f"--output-dir. If it is surely dead, remove {self.path}"
                )
            if self._take(holder):
                self._say(f"took over {self.path.parent} from a run that is dead ({holder})")
                break
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        there = _read(self.path)
        if there is not None and there[0].token == self._me.token:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def require(self) -> None:
        """Raise ``ValueError`` once another run has taken the directory."""
        if self.lost is not None:
            raise ValueError(
                f"{self.path.parent} was taken over by another run ({self.lost}); this one stops without a further write"
            )

    def _make(self, path: Path) -> bool:
        """Put this process's name there; False when there is one."""
        beside = self._write()
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise ValueError(f"cannot lock {path}: {error.strerror or error}") from error
            return self._make_without_links(path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()
        return True

    def _make_without_links(self, path: Path) -> bool:
        """For file systems without hard links."""
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(self._text())
        except FileExistsError:
            return False
        except OSError as error:
            raise ValueError(f"cannot lock {path}: {error.strerror or error}") from error
        return True

    def _write(self) -> Path:
        beside = self.path.with_name(f"{NAME}.{self._me.token}")
        try:
            beside.write_text(self._text(), encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot lock {self.path}: {error.strerror or error}") from error
        return beside

    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(self._me)) + "\n"

    def _dead(self, holder: Holder) -> bool:
        alive = holder.alive()
        if alive is not None:
            return not alive
        # Of another machine: it lives as long as the time of its lock moves.
        self._say(
            f"{self.path.parent} is held by {holder}, which cannot be looked up from here; "
            f"waiting up to {self._patience:g} s for a sign of life"
        )
        before = _read(self.path)
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._patience / 10))
            if (now := _read(self.path)) != before:
                return now is None
        return True

    def _take(self, holder: Holder) -> bool:
        """Replace a dead run's lock; False when another has been quicker. Who holds the claim on this very lock,
        and nobody else, may replace it.
        """
        name = hashlib.sha256(holder.token.encode()).hexdigest()[:16]
        claim = self.path.with_name(f"{NAME}.{name}.claim")
        if not self._make(claim):
            if (there := _read(claim)) is not None and there[0].alive() is False:
                raise ValueError(f"a run died while it took over {self.path.parent}; remove {claim}")
            time.sleep(0.01)
            return False
        try:
            there = _read(self.path)
            if there is None or there[0].token != holder.token:
                return False
            self._write().replace(self.path)
            return True
        finally:
            claim.unlink(missing_ok=True)

    def _keep(self) -> None:
        while not self._end.wait(self._beat):
            with contextlib.suppress(OSError, ValueError):  # a file server may be away for a while
                there = _read(self.path)
                if there is None:
                    if self.path.parent.is_dir() and not self.path.exists():
                        self._make(self.path)  # somebody tidied up
                elif there[0].token != self._me.token:
                    self.lost = str(there[0])
                    return
                else:
                    os.utime(self.path)  # takes no room on a full disk


def in_use(directory: Path) -> bool:
    """Whether a run that may live holds the lock of ``directory``. Looks at it only, and waits for no heartbeat."""
    try:
        there = _read(directory / NAME)
    except ValueError:
        return False
    return there is not None and there[0].alive() is not False


def _read(path: Path) -> tuple[Holder, int] | None:
    """The holder and the time of a lock; None when there is none. A file that is no lock is an error of its
    own.
    """
    try:
        # Opened, not only looked at: NFS asks the server for the time then.
        with open(path, encoding="utf-8") as file:
            text, changed = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return Holder(**json.loads(text)), changed
    except (ValueError, TypeError):
        # Cut short by a full disk or a crash; as it is never rewritten, only its time can tell.
        return Holder(host="unknown", pid=0, started="unknown", token=text, machine="", birth=0), changed


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _birth(pid: int) -> int | None:
    """When a process started; None when it does not run (any more)."""
    try:
        # The name in brackets may hold anything, spaces and brackets too.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})
"""What file systems without hard links answer."""
