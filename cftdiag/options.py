"""What a check is asked to do. Torch-free: the command line builds it, children receive it as JSON."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from cftdiag.errors import InputError
from cftdiag.target.devices import TARGETS

ATTENTIONS = ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3")
DTYPES = ("bfloat16", "float16", "float32")
DTYPE_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}
DYNAMIC = {"auto": None, "true": True, "false": False}
AC_MODES = ("none", "full", "selective")
SCOPES = ("none", "block", "loss", "block+loss", "model", "model+loss")
DEPTHS = ("trace", "joint")
FAST_FORWARD = ("auto", "always", "never")
FAIL_ON = ("error", "warning", "never")
ROUTING = ("balanced", "idle_and_single", "all_to_first")
OBJECTIVES = ("sft", "pretrain", "dpo", "grpo")
METHODS = ("full", "osft", "lora", "qlora", "qat")

#: Environment variable that tells a builder under which compile scope its model will be compiled, where one check builds it
#: for several.
SCOPE_VARIABLE = "CFTDIAG_COMPILE_SCOPE"

DEFAULT_LENGTHS = (512, 640, 777, 1024)
DEFAULT_TIMEOUT_S = 600.0
#: A subject of fewer real parameters than this is run for real and compared with eager, unless told
#: otherwise.
SMALL_MODEL = 10_000_000
DEFAULT_VERIFY_BUDGET_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """What is checked: the model, the shapes that it is fed with, and the method that trains it."""

    model: str | None = None
    """Catalogue name, directory, config.json, hub id or ``file.py:build``."""
    attn: str | None = None
    dtype: str | None = None
    lengths: tuple[int, ...] | None = None
    batch_size: int | None = None
    """Rows per forward."""
    layers: str | None = None
    """``all``, ``auto`` (the fewest layers that hold every kind of block) or a number."""
    blocks: tuple[str, ...] = ()
    """Globs over module names; empty means the blocks of every stack that the step calls."""
    packed: bool = False
    flash_varlen: bool = False
    pad_to_multiple_of: int | None = None
    method: str = "full"
    """Fine-tuning method of the trainer, one of ``METHODS``."""
    transform: str | None = None
    """``module:function``, called as ``function(model, method, compile scope)`` on a model built from a config: how the
    command line brings the trainer's method without the check knowing the trainer.
    """
    objective: str = "sft"
    """What the trainer learns, one of :data:`OBJECTIVES`."""
    objective_from: str | None = None
    """``module:function``, called as ``function(objective)``: the object with the ``loss`` of a row and ``extend``,
    which gives a batch what that loss takes. None: summed cross entropy.
    """
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.dtype is not None:
            object.__setattr__(self, "dtype", DTYPE_ALIASES.get(self.dtype, self.dtype))
        if self.lengths is not None:
            lengths = (self.lengths,) if isinstance(self.lengths, (int, str)) else tuple(self.lengths)
            object.__setattr__(self, "lengths", lengths)
        if isinstance(self.blocks, str):
            object.__setattr__(self, "blocks", (self.blocks,))
        object.__setattr__(self, "blocks", tuple(self.blocks))
        _one_of("attn", self.attn, ATTENTIONS)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("method", self.method, METHODS)
        _one_of("objective", self.objective, OBJECTIVES)
        if self.lengths is not None and not self.lengths:
            raise InputError("no lengths given; give at least one, for example --lengths 512,640")
        _positive("batch_size", self.batch_size)
        _positive("pad_to_multiple_of", self.pad_to_multiple_of)
        for length in self.lengths or ():
            _positive("length", length)
        if self.layers is not None:
            object.__setattr__(self, "layers", str(self.layers))
        if self.layers not in (None, "all", "auto") and (not self.layers.isdigit() or int(self.layers) < 1):
            raise InputError(f"layers {self.layers!r} is not 'all', 'auto' or a positive number")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What is compiled, how, and how far down the compiler goes."""

    dynamic: str | None = None
    """``auto`` (torch's None), ``true`` or ``false``."""
    fullgraph: bool | None = None
    scope: str = "block"
    backend: str | None = None
    ac: str = "none"
    depth: str = "joint"
    target: str | None = None
    """Offline device that Inductor lowers for: depth ``codegen``."""
    fast_forward: str = "auto"
    routing: str = "balanced"
    """What the routers of experts answer where no values are computed."""

    def __post_init__(self) -> None:
        if isinstance(self.dynamic, bool):
            object.__setattr__(self, "dynamic", str(self.dynamic).lower())
        _one_of("depth", self.depth, DEPTHS)
        _one_of("fast_forward", self.fast_forward, FAST_FORWARD)
        _one_of("ac", self.ac, AC_MODES)
        _one_of("compile_scope", self.scope, SCOPES)
        _one_of("routing", self.routing, ROUTING)
        _one_of("dynamic", self.dynamic, DYNAMIC)
        if self.target is None:
            return
        _one_of("target", self.target, TARGETS)
        if self.fast_forward == "never":
            raise InputError("code for --target is generated and not run; leave --fast-forward at auto")
        if self.backend not in (None, "inductor"):
            raise InputError(
                f"--target lowers with Inductor, but the backend is {self.backend!r}; drop one of the two"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """The ranks that the model is sharded over."""

    world_size: int = 1
    tensor_parallel: int = 1
    """Ranks that the weights of each block are split over."""

    def __post_init__(self) -> None:
        _positive("world_size", self.world_size)
        _positive("tensor_parallel", self.tensor_parallel)
        if self.world_size % self.tensor_parallel:
            raise InputError(
                f"--tensor-parallel {self.tensor_parallel} does not divide --world-size {self.world_size}; give a divisor"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The samples to forecast, and what batches are made of them."""

    path: str | None = None
    """File of sequence lengths to forecast: JSONL with ``input_ids`` or ``len``, a text file of lengths, or a
    dataset's directory.
    """
    max_tokens_per_gpu: int | None = None
    """Most tokens in one forward of one rank, padding included."""
    shuffle_seed: int | None = None
    over_long: str = "fatal"
    """What becomes of samples beyond the model's positions: ``fatal``, ``truncate`` or ``drop``."""

    def __post_init__(self) -> None:
        _positive("max_tokens_per_gpu", self.max_tokens_per_gpu)
        if self.path is None and (self.max_tokens_per_gpu is not None or self.shuffle_seed is not None):
            raise InputError(
                "--max-tokens-per-gpu and --shuffle-seed batch the samples of --data; give --data FILE"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """What may be run beyond the first pass, and for how long."""

    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds for each pass."""
    verify: bool = True
    """Prove mechanical remedies by running the check again."""
    verify_budget: float = DEFAULT_VERIFY_BUDGET_S
    """Seconds for all proofs together."""
    numerics: bool = False
    """Compare with eager whatever the subject's size."""

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise InputError(f"timeout {self.timeout} must be a positive number of seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchOptions:
    """What every pass sets over the program as it stands; remedies are tried with it."""

    torch_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Dotted torch config names (``torch._dynamo.config.X``)."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables."""
    compile_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further keyword arguments of ``Module.compile``, over the subject's own."""
    model_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Attributes set on the model's own config before anything runs."""
    drop_last: bool = False
    """Leave out batches with fewer rows than the first."""
    input_requires_grad: bool = False
    """Let every floating tensor of a batch require grad."""
    eager_warmup: bool = False
    """Run one step eagerly before anything is compiled."""
    mark_dynamic: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    """Parameter of the block's forward -> dimensions given to ``torch._dynamo.mark_dynamic`` before every
    call.
    """
    mark_unbacked: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    """The same for ``torch._dynamo.decorators.mark_unbacked``."""


#: Groups of CheckOptions, by attribute.
_GROUPS: Mapping[str, type] = {
    "subject": SubjectOptions,
    "compile": CompileOptions,
    "parallel": ParallelOptions,
    "data": SampleOptions,
    "budget": BudgetOptions,
    "patch": PatchOptions,
}
#: Flat names of the fields that their group lets be shorter.
_FLAT = {
    ("compile", "scope"): "compile_scope",
    ("compile", "backend"): "compile_backend",
    ("data", "path"): "data",
}
#: Flat name -> (group, field).
_FIELDS: Mapping[str, tuple[str, str]] = {
    _FLAT.get((group, field.name), field.name): (group, field.name)
    for group, cls in _GROUPS.items()
    for field in dataclasses.fields(cls)
}


@dataclasses.dataclass(frozen=True, init=False)
class CheckOptions:
    """Options of one check, in groups.

    They are given by the names of the command line with ``_`` for ``-``, whatever their group
    (``CheckOptions(model=..., compile_scope="model")``), and read by group (``options.compile.scope``). None
    means "the default of this kind of subject": :meth:`for_config` for a catalogue or config model, the
    Subject's own otherwise.
    """

    subject: SubjectOptions
    compile: CompileOptions
    parallel: ParallelOptions
    data: SampleOptions
    budget: BudgetOptions
    patch: PatchOptions

    def __init__(self, **flat: Any) -> None:
        """Raises :class:`InputError` for a wrong value and ``TypeError`` for an unknown name."""
        grouped: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
        for name, value in flat.items():
            if name not in _FIELDS:
                raise TypeError(f"CheckOptions.__init__() got an unexpected keyword argument {name!r}")
            group, field = _FIELDS[name]
            grouped[group][field] = value
        for group, cls in _GROUPS.items():
            object.__setattr__(self, group, cls(**grouped[group]))
        if self.subject.objective == "grpo" and self.parallel.world_size > 1:
            raise InputError("--objective grpo is trained by one process; drop --world-size")
        if self.data.path is not None and self.parallel.tensor_parallel > 1:
            raise InputError(
                "--data forecasts ranks that each have rows of their own; drop --tensor-parallel"
            )
        if self.data.path is not None and self.subject.lengths is not None:
            raise InputError("--data brings its own lengths; drop --lengths")
        if self.subject.packed and self.data.path is None and (self.subject.batch_size or 1) > 1:
            raise InputError(
                f"--packed puts all documents in one row, but the batch size is {self.subject.batch_size}; drop one of the two"
            )

    def with_(self, **flat: Any) -> CheckOptions:
        """These options with some changed, by flat name; raises as the constructor."""
        return CheckOptions(**{**self.flat(), **flat})

    def flat(self) -> dict[str, Any]:
        """Every option by its flat name."""
        return {name: getattr(getattr(self, group), field) for name, (group, field) in _FIELDS.items()}

    def for_config(self) -> CheckOptions:
        """The options of a catalogue or config model, defaults filled in."""
        subject, fullgraph = self.subject, self.compile.fullgraph
        return self.with_(
            attn=subject.attn or "sdpa",
            dtype=subject.dtype or "bfloat16",
            dynamic=self.compile.dynamic or "true",
            fullgraph=True if fullgraph is None else fullgraph,
            lengths=subject.lengths or DEFAULT_LENGTHS,
            batch_size=subject.batch_size or 1,
            layers=subject.layers or "all",
        )

    def for_subject(self) -> CheckOptions:
        """The options of a Subject; raises :class:`InputError` for one that only a model built here can
        follow.
        """
        for name in ("attn", "dtype", "lengths", "batch_size", "layers", "packed", "flash_varlen"):
            if getattr(self.subject, name):
                flag = "--" + name.replace("_", "-")
                raise InputError(f"{flag} does not apply to a model that build() makes; change it in build()")
        return self

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict by flat names."""
        return copy.deepcopy(self.flat())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckOptions:
        """Inverse of :meth:`to_dict`."""
        return cls(**data)


def _one_of(name: str, value: str | None, allowed: Collection[str]) -> None:
    if value is not None and value not in allowed:
        raise InputError(f"{name} {value!r} is unknown; use one of {', '.join(allowed)}")


def _positive(name: str, value: object) -> None:
    """Refuse a value that is given and no positive whole number."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(f"{name} {value!r} must be a positive whole number")
