"""The first thing that a rehearsed process does: guard its writes, and wait for torch."""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from cftdiag.error_text import shorten
from cftdiag.rehearse import confine, file_calls, native_files, trackers
from cftdiag.rehearse.import_hooks import after_import, expect
from cftdiag.rehearse.overlay import Overlay
from cftdiag.rehearse.settings import FILES, Fault, Outcome, Rehearsal

#: Set to the process id of the rank itself, so that a process that it starts knows that it is none.
_RANK_PROCESS = "CFTDIAG_REHEARSE_PROCESS"
_LAUNCHERS = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch._inductor.compile_worker",
    "accelerate.commands",
    "deepspeed.launcher",
)


def begin() -> None:
    """Make this process a rehearsal of what it is about to run."""
    settings = Rehearsal.from_environment()
    overlay = Overlay(os.path.join(settings.scratch, FILES), writable(settings))
    os.makedirs(overlay.root, exist_ok=True)
    file_calls.install(overlay)
    trackers.install(overlay)
    native_files.install(overlay)
    if _is_launcher():
        return
    process = _Process(settings)
    # these import torch in their middle, and are hooked into then
    expect("transformers.configuration_utils", "transformers.modeling_utils", "transformers.trainer")
    expect("safetensors.torch")
    after_import("torch", process.torch_imported)


def writable(settings: Rehearsal) -> list[str]:
    """Folders that a rehearsed process writes to for real: its scratch folder, the events, devices, and caches
    of downloads and compiled code, which change no result.
    """
    home = os.path.expanduser("~")
    named = ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME")
    caches = [os.path.join(home, ".cache"), *(os.environ[name] for name in named if os.environ.get(name))]
    return [settings.scratch, settings.run_dir, *caches, "/dev", "/proc", "/sys"]


class _Process:
    """One Python process of the command, from its start to its end."""

    def __init__(self, settings: Rehearsal) -> None:
        self.settings = settings
        self.fault: Fault | None = None
        self.programs: dict[str, None] = {}
        self.pid = os.getpid()
        # exec keeps the process id: a script that re-executes itself stays the rank
        self.is_rank = os.environ.setdefault(_RANK_PROCESS, str(self.pid)) == str(self.pid)
        if self.is_rank:
            self._before = sys.excepthook
            sys.excepthook = self._failed
            atexit.register(self._ended)
            sys.addaudithook(self._audited)
            # a rehearsal that runs out of time ends like a script that leaves by itself: what it knows is told
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    def torch_imported(self, module: ModuleType) -> None:
        """Make torch a rehearsal's; a process in which that fails must not go on."""
        try:
            from cftdiag.rehearse import training

            training.install(self.settings)
        except BaseException as error:  # noqa: BLE001 - unguarded it would train for real
            traceback.print_exc()
            print(f"cftdiag: cannot rehearse ({type(error).__name__}: {error})", file=sys.stderr)
            sys.stderr.flush()
            os._exit(86)

    def _audited(self, event: str, details: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            name = os.path.basename(os.fsdecode(details[0] or ""))
        elif event == "os.system":
            name = os.fsdecode(details[0]).partition(" ")[0]
        else:
            return
        if not name.startswith("python"):
            self.programs.setdefault(name)

    def _failed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.fault = fault_of(error)
        self._before(kind, error, trace)

    def _ended(self) -> None:
        if os.getpid() != self.pid:
            return
        outcome = Outcome(fault=self.fault)
        training = sys.modules.get("cftdiag.rehearse.training")
        if training is not None:
            outcome = training.outcome(self.fault)
        notes = list(outcome.undetermined)
        if not confine.available():
            notes.append(
                "this kernel cannot confine a process (Landlock), so files that native code writes were written"
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        import dataclasses

        dataclasses.replace(
            outcome, undetermined=tuple(notes), peak_rss_gb=peak, programs=tuple(self.programs)
        ).write(self.settings.outcome_file)


def fault_of(error: BaseException) -> Fault:
    """What an exception says, with the innermost line that is neither torch's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not _is_inner(f.filename)] or list(frames)
    last = own[-1] if own else None
    compiling = False
    if "torch._dynamo" in sys.modules:
        from cftdiag.passes.compiled_calls import is_checkpoint_failure, is_compile_failure

        compiling = is_compile_failure(error) or is_checkpoint_failure(error)
    return Fault(
        error=type(error).__name__,
        message=shorten(" ".join(str(error).split()), 2000),
        file=last.filename if last else None,
        line=last.lineno if last else None,
        function=last.name if last else None,
        code=last.line if last else None,
        missing=error.name if isinstance(error, ImportError) else None,
        compile=compiling,
    )


def _is_inner(filename: str) -> bool:
    ours = str(Path(__file__).resolve().parents[1]) + os.sep
    return f"{os.sep}torch{os.sep}" in filename or filename.startswith((ours, "<"))


def _is_launcher() -> bool:
    """True for processes that import torch and train nothing: launchers and Inductor's compile workers."""
    words = sys.orig_argv[1:]
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if module.startswith(_LAUNCHERS):
        return True
    script = next((word for word in words if not word.startswith("-")), "")
    return (
        os.path.basename(script) in ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
        or "/torch/_inductor/compile_worker/" in script
    )
