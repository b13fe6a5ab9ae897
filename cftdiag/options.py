"""What a check is asked to do. Torch-free: the command line builds it, children receive it as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
METHODS = ("full", "osft", "lora")

DEFAULT_LENGTHS = (512, 640, 777, 1024)
DEFAULT_TIMEOUT_S = 600.0
#: A subject of fewer real parameters than this is run for real and compared with eager, unless told
#: otherwise.
SMALL_MODEL = 10_000_000
DEFAULT_VERIFY_BUDGET_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of one check; the names are those of the command line with ``_`` for ``-``.

    None means "the default of this kind of subject": :meth:`for_config` for a catalogue or config model, the
    Subject's own otherwise.
    """

    model: str | None = None
    """Catalogue name, directory, config.json, hub id or ``file.py:build``."""
    attn: str | None = None
    dtype: str | None = None
    dynamic: str | None = None
    """``auto`` (torch's None), ``true`` or ``false``."""
    fullgraph: bool | None = None
    lengths: tuple[int, ...] | None = None
    batch_size: int | None = None
    """Rows per forward."""
    layers: str | None = None
    """``all``, ``auto`` (the fewest layers that hold every kind of block) or a number."""
    blocks: tuple[str, ...] = ()
    """Globs over module names; empty means the longest ModuleList."""
    depth: str = "joint"
    target: str | None = None
    """Offline device that Inductor lowers for: depth ``codegen``."""
    fast_forward: str = "auto"
    ac: str = "none"
    compile_scope: str = "block"
    compile_backend: str | None = None
    world_size: int = 1
    packed: bool = False
    flash_varlen: bool = False
    pad_to_multiple_of: int | None = None
    data: str | None = None
    """File of sequence lengths to forecast: JSONL with ``input_ids`` or ``len``, a text file of lengths, or a
    dataset's directory.
    """
    max_tokens_per_gpu: int | None = None
    """Most tokens in one forward of one rank, padding included."""
    shuffle_seed: int | None = None
    over_long: str = "fatal"
    """What becomes of samples beyond the model's positions: ``fatal``, ``truncate`` or ``drop``."""
    routing: str = "balanced"
    method: str = "full"
    """Fine-tuning method of the trainer: ``full``, ``osft`` or ``lora``."""
    transform: str | None = None
    """``module:function``, called as ``function(model, method)`` on a model built from a config: how the
    command line brings the trainer's method without the check knowing the trainer.
    """
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds for each pass."""
    trust_remote_code: bool = False
    verify: bool = True
    """Prove mechanical remedies by running the check again."""
    verify_budget: float = DEFAULT_VERIFY_BUDGET_S
    """Seconds for all proofs together."""
    numerics: bool = False
    torch_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Dotted torch config names (``torch._dynamo.config.X``) set in every pass."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables set in every pass."""
    compile_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further keyword arguments of ``Module.compile``, over the subject's own."""
    drop_last: bool = False
    """Leave out batches with fewer rows than the first."""
    mark_dynamic: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    """Parameter of the block's forward -> dimensions given to ``torch._dynamo.mark_dynamic`` before every
    call.
    """
    mark_unbacked: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    """The same for ``torch._dynamo.decorators.mark_unbacked``."""
    eager_warmup: bool = False
    """Run one step eagerly before anything is compiled."""
    model_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Attributes set on the model's own config before anything runs."""
    input_requires_grad: bool = False
    """Let every floating tensor of a batch require grad."""
    debug: bool = False

    def __post_init__(self) -> None:
        if self.dtype is not None:
            object.__setattr__(self, "dtype", DTYPE_ALIASES.get(self.dtype, self.dtype))
        if self.lengths is not None:
            lengths = (self.lengths,) if isinstance(self.lengths, (int, str)) else tuple(self.lengths)
            object.__setattr__(self, "lengths", lengths)
        if isinstance(self.dynamic, bool):
            object.__setattr__(self, "dynamic", str(self.dynamic).lower())
        if isinstance(self.blocks, str):
            object.__setattr__(self, "blocks", (self.blocks,))
        object.__setattr__(self, "blocks", tuple(self.blocks))
        for name, allowed in (
            ("attn", ATTENTIONS),
            ("dtype", DTYPES),
            ("depth", DEPTHS),
            ("fast_forward", FAST_FORWARD),
            ("ac", AC_MODES),
            ("compile_scope", SCOPES),
            ("routing", ROUTING),
            ("method", METHODS),
        ):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise InputError(f"{name} {value!r} is unknown; use one of {', '.join(allowed)}")
        if self.dynamic is not None and self.dynamic not in DYNAMIC:
            raise InputError(f"dynamic {self.dynamic!r} is unknown; use one of {', '.join(DYNAMIC)}")
        if self.target is not None:
            _check_target(self)
        if self.lengths is not None and not self.lengths:
            raise InputError("no lengths given; give at least one, for example --lengths 512,640")
        for name in ("batch_size", "world_size", "pad_to_multiple_of", "max_tokens_per_gpu"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        for length in self.lengths or ():
            _positive("length", length)
        if not self.timeout > 0:
            raise InputError(f"timeout {self.timeout} must be a positive number of seconds")
        if self.layers is not None:
            object.__setattr__(self, "layers", str(self.layers))
        if self.layers not in (None, "all", "auto") and (not self.layers.isdigit() or int(self.layers) < 1):
            raise InputError(f"layers {self.layers!r} is not 'all', 'auto' or a positive number")
        if self.data is not None and self.lengths is not None:
            raise InputError("--data brings its own lengths; drop --lengths")
        if self.data is None and (self.max_tokens_per_gpu is not None or self.shuffle_seed is not None):
            raise InputError(
                "--max-tokens-per-gpu and --shuffle-seed batch the samples of --data; give --data FILE"
            )
        if self.packed and self.data is None and (self.batch_size or 1) > 1:
            raise InputError(
                f"--packed puts all documents in one row, but the batch size is {self.batch_size}; drop one of the two"
            )

    def for_config(self) -> CheckOptions:
        """The options of a catalogue or config model, defaults filled in."""
        return dataclasses.replace(
            self,
            attn=self.attn or "sdpa",
            dtype=self.dtype or "bfloat16",
            dynamic=self.dynamic or "true",
            fullgraph=True if self.fullgraph is None else self.fullgraph,
            lengths=self.lengths or DEFAULT_LENGTHS,
            batch_size=self.batch_size or 1,
            layers=self.layers or "all",
        )

    def for_subject(self) -> CheckOptions:
        """The options of a Subject; raises :class:`InputError` for one that only a model built here can
        follow.
        """
        for name in ("attn", "dtype", "lengths", "batch_size", "layers", "packed", "flash_varlen"):
            if getattr(self, name):
                flag = "--" + name.replace("_", "-")
                raise InputError(f"{flag} does not apply to a model that build() makes; change it in build()")
        return self

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckOptions:
        """Inverse of :meth:`to_dict`."""
        return cls(**data)


def _check_target(options: CheckOptions) -> None:
    if options.target not in TARGETS:
        raise InputError(f"target {options.target!r} is unknown; use one of {', '.join(TARGETS)}")
    if options.fast_forward == "never":
        raise InputError("code for --target is generated and not run; leave --fast-forward at auto")
    if options.compile_backend not in (None, "inductor"):
        raise InputError(
            f"--target lowers with Inductor, but the backend is {options.compile_backend!r}; drop one of the two"
        )


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} {value!r} must be a positive whole number")
