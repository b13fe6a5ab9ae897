"""In a pass's child: from an origin to a model with its batches, its blocks and the way it compiles."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cftdiag import fastforward
from cftdiag.diagnose.wrong_code import WrongCode
from cftdiag.error_text import one_line
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.options import DYNAMIC, SMALL_MODEL, CheckOptions
from cftdiag.recipe import (
    TrainRecipe,
    build_model,
    find_blocks,
    flash_standins,
    flex_on_cpu,
    load_config,
    make_batches,
)
from cftdiag.recipe.loss import has_own_head
from cftdiag.subject import Origin, Subject, as_subject
from cftdiag.torch_private.tracing import tree_leaves

_NO_CACHE = (
    "use_cache=False, as a trainer sets it; with the config's own use_cache=True a plain model(**batch) "
    "compiles once a layer (cftdiag explain kv_cache)"
)


@dataclasses.dataclass(kw_only=True)
class Prepared:
    """What a pass runs. ``step`` is None where the program's own training step is meant; ``shapes`` holds
    (rows, length) of each batch.
    """

    subject: Subject
    options: CheckOptions
    weightless: bool
    shapes: list[tuple[int | None, int | None]]
    compile_kwargs: dict[str, Any]
    step: Callable[[Any, Any], Any] | None = None
    training: TrainRecipe = dataclasses.field(default_factory=TrainRecipe)
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the options say over the subject's own compile arguments."""
    assumed: tuple[str, ...] = ()
    """What the program here does otherwise than a plain ``model(**batch)`` would, in sentences."""
    extend: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Gives the tensors of a row what the loss takes beside them."""
    wrong_code: list[WrongCode] = dataclasses.field(default_factory=list)
    """What was lowered for a target so far and has the pattern of a known bug of torch."""

    def backend(self) -> tuple[Any, str]:
        """(backend, depth it reaches); raises :class:`InputError` for one that cannot run on weights that are
        not there.
        """
        if self.options.compile.target is not None:
            return _target_backend(self.options.compile.target, self.wrong_code.append), "codegen"
        own = self.compile_kwargs.get("backend")
        name = self.options.compile.backend or os.environ.get("TORCH_COMPILE_BACKEND") or own
        if self.weightless:
            if name not in (None, "eager", "aot_eager"):
                raise InputError(
                    f"backend {name!r} would run compiled code on weights that are not there; use eager or aot_eager, "
                    "or --fast-forward never on a small model"
                )
            depth = "trace" if name == "eager" else self.options.compile.depth
            return fastforward.backend_for(depth), depth
        if name is None:
            name = "eager" if self.options.compile.depth == "trace" else "aot_eager"
        depth = {"eager": "trace", "aot_eager": "joint"}.get(name, "run") if isinstance(name, str) else "run"
        return _lookup(name), depth


def prepare(origin: Origin, options: CheckOptions, live: Subject | None) -> Prepared:
    """Build what the origin names. Raises :class:`InputError` for what the user can mend, and for an argument of
    compile that this torch lacks.
    """
    unknown = set(options.patch.compile_kwargs) - set(inspect.signature(torch.compile).parameters)
    if unknown:
        raise InputError(f"torch.compile of this torch has no {', '.join(sorted(unknown))}")
    if live is not None:
        prepared = _from_subject(live, options)
    elif origin.from_config:
        prepared = _from_config(origin, options.for_config())
    else:
        prepared = _from_subject(as_subject(_call_builder(origin), origin.name), options)
    for name, value in options.patch.model_config.items():
        config = getattr(prepared.subject.model, "config", None)
        if not hasattr(config, name):
            raise InputError(f"the model has no config with {name}, so it cannot be changed")
        setattr(config, name, value)
    return prepared


def _from_config(origin: Origin, o: CheckOptions) -> Prepared:
    wanted = o.subject
    assert (
        wanted.lengths is not None
        and wanted.batch_size is not None
        and wanted.attn is not None
        and wanted.dtype is not None
        and wanted.layers is not None
    )
    real = o.compile.fast_forward == "never"
    source: Any = {"model_type": origin.model_type, **origin.config} if origin.type == "config" else None
    if origin.type == "hub":
        source = _hub_config(origin.name, wanted.trust_remote_code)
    elif "auto_map" in origin.config and origin.path is not None:
        source = origin.path
    layers: Any = {"all": None, "auto": "auto"}.get(wanted.layers, wanted.layers)
    try:
        config = load_config(source, trust_remote_code=wanted.trust_remote_code)
        cached = bool(getattr(config, "use_cache", False))
        count = getattr(config, "num_hidden_layers", None)
        if wanted.layers.isdigit() and isinstance(count, int) and int(wanted.layers) > count:
            raise InputError(f"--layers {wanted.layers}: the model has {count}")
        model = build_model(
            config,
            attn=wanted.attn,
            dtype=wanted.dtype,
            layers=int(layers) if str(layers).isdigit() else layers,
            weights=real,
        )
        if wanted.transform is not None:
            _transform(model, wanted.transform, wanted.method, o.compile.scope, weightless=not real)
        lengths = [_round_up(n, wanted.pad_to_multiple_of) for n in wanted.lengths]
        batches = make_batches(
            model.config,
            lengths=lengths,
            batch_size=wanted.batch_size,
            packed=wanted.packed,
            flash_varlen=wanted.flash_varlen,
            model=model,
        )
        training, extend = _training(model, o)
    except ValueError as error:
        raise InputError(str(error)) from error
    return Prepared(
        subject=Subject(model=model, batches=[extend(dict(b.kwargs)) for b in batches]),
        options=o,
        weightless=not real,
        shapes=[(b.batch_size, b.length) for b in batches],
        training=training,
        extend=extend,
        assumed=(_NO_CACHE,) if cached else (),
        compile_kwargs={
            "dynamic": DYNAMIC[o.compile.dynamic or "true"],
            "fullgraph": o.compile.fullgraph,
            **o.patch.compile_kwargs,
        },
    )


def _training(
    model: torch.nn.Module, o: CheckOptions
) -> tuple[TrainRecipe, Callable[[dict[str, Any]], dict[str, Any]]]:
    """How the trainer would wrap this model, and what its loss adds to a batch; a model whose body cannot be told
    from its head keeps its own loss.
    """
    own = TrainRecipe(
        scope=o.compile.scope,
        ac=o.compile.ac,
        dtype=o.subject.dtype,
        tensor_parallel=o.parallel.tensor_parallel,
    )
    if o.subject.objective_from is None:
        return own if has_own_head(model) else dataclasses.replace(own, loss_chunks=None), dict
    if not has_own_head(model):
        raise InputError(
            f"objective {o.subject.objective} needs a body and an lm_head that can be called one by one; "
            f"{type(model).__name__} has none"
        )
    module, _, name = o.subject.objective_from.partition(":")
    objective = getattr(importlib.import_module(module), name)(o.subject.objective)
    return dataclasses.replace(own, loss=objective.loss), objective.extend


def _transform(model: torch.nn.Module, function: str, method: str, scope: str, *, weightless: bool) -> None:
    """Change the built model in place, as the program that trains it does; new parameters of a model without
    weights have no values either.
    """
    module, _, name = function.partition(":")
    with fastforward.SkipMode() if weightless else contextlib.nullcontext():
        getattr(importlib.import_module(module), name)(model, method, scope)
    if weightless:
        fastforward.mark_weights(model)


def _refuse(subject: Subject, o: CheckOptions) -> None:
    """Refuse options that this subject's own way of compiling or training leaves no place for."""
    if subject.wrap is not None:
        own: tuple[tuple[str, object, object], ...] = (
            ("--ac", o.compile.ac, "none"),
            ("--world-size", o.parallel.world_size, 1),
            ("--tensor-parallel", o.parallel.tensor_parallel, 1),
            ("--compile-scope", o.compile.scope, "block"),
            ("--depth", o.compile.depth, "joint"),
            ("--compile-backend", o.compile.backend, os.environ.get("TORCH_COMPILE_BACKEND")),
        )
        for flag, given, default in own:
            if given not in (default, None):
                raise InputError(
                    f"{flag} does not apply to a subject that compiles itself; change it in wrap()"
                )
    elif "loss" in o.compile.scope and subject.training is None:
        raise InputError(
            f"--compile-scope {o.compile.scope}: the loss is inside the subject's own step; use block or model, or compile it in step()"
        )


def _from_subject(subject: Subject, o: CheckOptions) -> Prepared:
    o.for_subject()
    _refuse(subject, o)
    if not torch.cuda.is_available() and _uses_flex_attention(subject.model):
        flex_on_cpu.install()
    parameters = list(subject.model.parameters())
    meta = any(p.is_meta for p in parameters)
    if o.compile.fast_forward == "never" and meta:
        raise InputError(
            "the model's parameters are on the meta device, so it cannot be run for real; leave --fast-forward at auto"
        )
    small = sum(p.numel() for p in parameters) < SMALL_MODEL
    weightless = (
        o.compile.fast_forward == "always"
        or o.compile.target is not None
        or (o.compile.fast_forward == "auto" and (meta or not small))
    )
    if weightless:
        if meta:
            absent = [b for b in subject.model.buffers() if b.is_meta]
            with fastforward.SkipMode():
                subject.model.to_empty(device="cpu")
            if absent:  # nobody wrote their values: they are as unknown as weights
                for buffer in subject.model.buffers():
                    fastforward.mark(buffer, fastforward.SKIPPED)
        fastforward.mark_weights(subject.model)
    changes = dict(o.patch.compile_kwargs)
    if o.compile.dynamic is not None:
        changes["dynamic"] = DYNAMIC[o.compile.dynamic]
    if o.compile.fullgraph is not None:
        changes["fullgraph"] = o.compile.fullgraph
    batches = [padded(batch, o.subject.pad_to_multiple_of) for batch in subject.batches]
    if o.patch.input_requires_grad:
        batches = [{k: _requiring_grad(v) for k, v in batch.items()} for batch in batches]
    shapes = [_batch_shape(b) for b in batches]
    if o.patch.drop_last and shapes:
        kept = [i for i, (rows, _) in enumerate(shapes) if rows == shapes[0][0]]
        batches, shapes = [batches[i] for i in kept], [shapes[i] for i in kept]
    return Prepared(
        subject=dataclasses.replace(subject, batches=batches),
        options=o,
        weightless=weightless,
        shapes=shapes,
        compile_kwargs={**subject.compile_kwargs, **changes},
        step=None if subject.training is not None else subject.step or default_step,
        training=dataclasses.replace(
            subject.training or TrainRecipe(loss_chunks=None),
            scope=o.compile.scope,
            ac=o.compile.ac,
            tensor_parallel=o.parallel.tensor_parallel,
        ),
        changes=changes,
    )


def _uses_flex_attention(model: torch.nn.Module) -> bool:
    """True when transformers will call FlexAttention in some module."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return any(getattr(config, "_attn_implementation", None) == "flex_attention" for config in configs)


def blocks_of(
    model: torch.nn.Module, globs: Sequence[str], required: bool = True
) -> list[tuple[str, torch.nn.Module]]:
    """(name, module) of every block; :class:`InputError` when there is none and one is required."""
    try:
        return list(find_blocks(model, list(globs) or None))
    except ValueError as error:
        if required:
            raise InputError(str(error)) from error
        return []


def default_step(model: torch.nn.Module, batch: Mapping[str, Any]) -> Any:
    """Forward, mean square of the first floating output, backward; returns the loss (0-d)."""
    output = model(**batch)
    output = dict(output) if isinstance(output, Mapping) else output
    tensors = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if not tensors:
        raise InputError(
            "the model returned no floating tensor to train on; give Subject(step=...) for your own training step"
        )
    loss = tensors[0].float().pow(2).mean()
    if loss.requires_grad:
        loss.backward()
        model.zero_grad(set_to_none=True)
    return loss.detach()


def _target_backend(name: str, on_wrong_code: Callable[[WrongCode], None]) -> Any:
    from cftdiag.target import TargetUnavailable, backend

    try:
        return backend(name, on_wrong_code=on_wrong_code)
    except TargetUnavailable as error:
        raise EnvironmentUnfit(str(error)) from error


def batch_of_shape(
    model: Any, batch_size: int, length: int, variant: str, flash_varlen: bool
) -> dict[str, Any]:
    """Arguments of one forward of a config model. ``variant`` is "" (full rows), "padded" (the last row ends
    early) or "packed".
    """
    packed = variant == "packed"
    [batch] = make_batches(
        model.config,
        lengths=[length],
        batch_size=batch_size,
        packed=packed,
        flash_varlen=flash_varlen,
        model=model,
    )
    kwargs = dict(batch.kwargs)
    if variant == "padded":
        mask = torch.ones(batch_size, length, dtype=torch.int64)
        mask[-1, -1] = 0
        kwargs |= {"attention_mask": mask, "labels": kwargs["labels"].masked_fill(mask == 0, -100)}
    return kwargs


def _call_builder(origin: Origin) -> object:
    assert origin.path is not None
    path, name = Path(origin.path), origin.attr
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # under its own name, so that its classes can be found, unless a module of that name is in use already
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: importing it raised {one_line(error)}{_at(error, path)}") from error
    builder = getattr(module, name, None)
    if not callable(builder):
        raise InputError(f"{path}: has no function {name!r}; define {name}() or name another after the colon")
    # transformers refuses to build for a kernel that is not installed; whoever asks it for one gets its
    # stand-in, as --attn does
    flash_standins.install()
    try:
        torch.manual_seed(0)
        return builder()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{origin.name} raised {one_line(error)}{_at(error, path)}") from error


def _at(error: BaseException, path: Path) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""


def _hub_config(name: str, trust_remote_code: bool) -> Any:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from transformers import AutoConfig

    from cftdiag import catalogue

    close = catalogue.close_matches(name)
    hint = (
        f"catalogue models of a like name: {', '.join(close)}"
        if close
        else "`cftdiag models` lists models that need no hub"
    )
    unreachable = None
    try:
        # asked once and without retries: a laptop without a network must not wait for what the cache or the
        # catalogue has
        HfApi().model_info(name, timeout=10)
    except GatedRepoError as error:
        raise InputError(
            f"{name}: its owner gives access on request; ask for it on the hub and log in with `hf auth login`; {hint}"
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{name}: the hub has no such model, or a private one (`hf auth login`); {hint}"
        ) from error
    except Exception as error:  # noqa: BLE001 - no network, a proxy, HF_HUB_OFFLINE, a hub that is down: the cache may still have it
        unreachable = one_line(error)
    try:
        return AutoConfig.from_pretrained(
            name, trust_remote_code=trust_remote_code, local_files_only=unreachable is not None
        )
    except Exception as error:
        if "trust_remote_code" in str(error):
            hint = "it brings its own code; pass --trust-remote-code if you trust it"
        elif unreachable is not None:
            raise InputError(
                f"{name}: the hub cannot be reached ({unreachable}) and its cache has no such model; {hint}"
            ) from error
        raise InputError(
            f"{name}: its config could not be read from the hub ({one_line(error)}); {hint}"
        ) from error


def _batch_shape(batch: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(rows, length) of the first tensor with a batch and a sequence dimension."""
    for value in batch.values():
        if isinstance(value, torch.Tensor) and value.dim() in (2, 3):  # an image has no length
            return value.shape[0], value.shape[1]
    return None, None


def padded(batch: Mapping[str, Any], multiple: int | None) -> dict[str, Any]:
    """The batch with every tensor of the batch's length padded along dimension 1 (zeros; -100 for labels), as
    a collator would.
    """
    length = _batch_shape(batch)[1]
    if not multiple or length is None:
        return dict(batch)
    missing = _round_up(length, multiple) - length

    def pad(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[1] != length:
            return value
        filler = -100 if name == "labels" else 0
        return torch.nn.functional.pad(value, (0, 0) * (value.dim() - 2) + (0, missing), value=filler)

    return {name: pad(name, value) for name, value in batch.items()}


def _requiring_grad(value: Any) -> Any:
    return (
        value.requires_grad_(True)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.is_leaf
        else value
    )


def _round_up(n: int, multiple: int | None) -> int:
    return n if not multiple else -(-n // multiple) * multiple


def _lookup(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    from cftdiag.torch_private.dynamo import InvalidBackend, lookup_backend

    try:
        return lookup_backend(name)
    except InvalidBackend as error:
        raise InputError(
            f"backend {name!r} is unknown to this torch; use eager, aot_eager or inductor"
        ) from error
