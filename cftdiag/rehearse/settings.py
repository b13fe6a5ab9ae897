"""What a rehearsed process is told, and what it leaves behind. Torch-free."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Environment variable that carries the settings into the script's processes.
VARIABLE = "CFTDIAG_REHEARSE"
#: Directory, inside the scratch folder, of the files that the script would have written.
FILES = "files"
#: File, inside the scratch folder, of the collectives that a rank issued.
COLLECTIVES = "collectives.jsonl"
#: File, inside the scratch folder, of what the last step launched.
WORK = "work.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Settings of one rehearsed rank."""

    run_dir: str
    """Run directory of the monitor, one for all ranks."""
    scratch: str
    """Folder that takes all that the script writes, one for each rank."""
    steps: int = 30
    """Optimizer steps after which the script is ended."""
    depth: str = "joint"
    """``trace`` or ``joint``; with ``target`` it is ``codegen``."""
    target: str | None = None
    """Offline device that Inductor lowers for."""
    device: str | None = None
    """Device that answers to CUDA, a key of :data:`cftdiag.target.devices.DEVICES`; None: the machine's own."""
    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    compared: bool = False
    """Whether other ranks are rehearsed too, against which this one is held."""
    weights: bool = False
    """Keep the real weights and compute with them."""
    plain: bool = False
    """Compile nothing and compute everything, on random weights of few layers: does the script fail by itself?"""
    count: bool = False
    """Count what the last step launches, for an estimate of its time."""
    eager: bool = False
    """Compile nothing, and skip the arithmetic all the same."""
    routing: str = "balanced"
    stand_ins: tuple[str, ...] = ()
    """Packages of kernels that are not here and are stood in for."""
    torch_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Dotted torch settings, set once torch is imported."""
    compile_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments that go over those of every ``torch.compile`` of the script."""
    pad_to_multiple_of: int | None = None
    """For collators and tokenizers of the script."""
    drop_last: bool = False
    """For data loaders of the script."""
    input_requires_grad: bool = False
    """For inputs of the modules that the script compiles."""
    model_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the configurations that transformers builds models of."""

    @property
    def outcome_file(self) -> Path:
        """Where the process writes its :class:`Outcome`."""
        return Path(self.scratch) / "outcome.json"

    def to_json(self) -> str:
        """One line for the environment."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_environment(cls) -> Rehearsal:
        """The settings that this process was started with; ``KeyError`` in a process that is no rehearsal."""
        told = json.loads(os.environ[VARIABLE])
        return cls(**told | {"stand_ins": tuple(told.get("stand_ins", ()))})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """An exception that ended the script."""

    error: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    missing: str | None = None
    """The module that could not be imported."""
    compile: bool = False
    """Raised by Dynamo, AOTAutograd or the backend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagerShare:
    """One kind of operator that ran outside compiled regions."""

    name: str
    """Module that ran it, or the operator where no module did."""
    flops: float
    parameters: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateChange:
    """What one call of a callback changed of the model."""

    step: int
    """The first optimizer step that meets it."""
    attribute: str
    """Of modules, ``training`` for example, or ``requires_grad`` of parameters."""
    names: tuple[str, ...]
    """The first of those modules or parameters."""
    count: int
    before: Any
    """Value on the first of them, as are the others."""
    after: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallbackEffect:
    """What all calls of one class of callbacks did."""

    name: str
    calls: int = 0
    """Of its hooks."""
    seconds: float = 0.0
    """On this machine, compiling included."""
    operators: int = 0
    """Outside compiled graphs, and runs of such graphs."""
    flops: float = 0.0
    reads: int = 0
    """Values that the step computes and Python read: on a device it waits for each."""
    compiles: int = 0
    recompiles: int = 0
    graph_breaks: int = 0
    changes: tuple[StateChange, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a rehearsed process knows at its end, beside the monitor's events."""

    torch: str | None = None
    """Version of the script's torch; None when it imported none."""
    fault: Fault | None = None
    exit_code: int | None = None
    """Code that the script gave to ``sys.exit``; None when it ran to its end or was ended after its steps."""
    ended_by_limit: bool = False
    evaluated: bool = False
    """Whether a compiled module was called without gradients."""
    members: tuple[tuple[str, str], ...] = ()
    """(name, class) of the layers inside a compiled model: members of its outermost ModuleLists."""
    model_class: str | None = None
    parameters: int | None = None
    compiled_parameters: int | None = None
    compiled_flops: float = 0.0
    eager_flops: float = 0.0
    eager: tuple[EagerShare, ...] = ()
    callbacks: tuple[CallbackEffect, ...] = ()
    """Of a trainer, in the order of their first calls."""
    compile_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    applied: tuple[str, ...] = ()
    """Changes of the rehearsal, by their names in :class:`Rehearsal`, that met something to change."""
    guessed: bool = False
    """Whether Python read values that nobody computed, and so may have ended the script by one."""
    stood_in: tuple[str, ...] = ()
    """What was not there and was answered for: ``CUDA``, ``other ranks``, ``kernels``."""
    programs: tuple[str, ...] = ()
    """Programs other than Python that the script has started: they write to its scratch folder alone."""
    undetermined: tuple[str, ...] = ()
    peak_rss_gb: float | None = None

    def write(self, path: Path) -> None:
        """Write the JSON file that :meth:`read` reads."""
        path.write_text(json.dumps(dataclasses.asdict(self), default=str), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Outcome | None:
        """The outcome, or None where the process ended without leaving one."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        fault = data.pop("fault")
        data["eager"] = tuple(EagerShare(**share) for share in data["eager"])
        data["callbacks"] = tuple(_callback(row) for row in data["callbacks"])
        data["undetermined"] = tuple(data["undetermined"])
        for name in ("applied", "stood_in", "programs"):
            data[name] = tuple(data[name])
        data["members"] = tuple((str(name), str(cls)) for name, cls in data["members"])
        return cls(**data, fault=None if fault is None else Fault(**fault))


def _callback(row: Mapping[str, Any]) -> CallbackEffect:
    changes = (StateChange(**change | {"names": tuple(change["names"])}) for change in row["changes"])
    return CallbackEffect(**{**row, "changes": tuple(changes)})


def jsonable(value: Any) -> Any:
    """The value itself where JSON has it, the name of what is called, else its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value):
        return getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(value)
