"""One pass, run in a child: build the subject, compile its blocks, run its steps, and tell what torch did.

Modes: ``fullgraph`` compiles with ``fullgraph=True`` and keeps one failing block from hiding the next; ``collect`` compiles as the subject asks
but without fullgraph, and so meets every graph break; ``auto`` is the one of these two that the subject asks for; ``eager`` compiles nothing and
tells whether a failure is the model's own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cftdiag.capture import Recorder, counting, track
from cftdiag.check import fastforward
from cftdiag.check.errors import EnvironmentUnfit, InputError, one_line
from cftdiag.check.options import DYNAMIC, CheckOptions
from cftdiag.check.process import Send
from cftdiag.check.program import DepthNotReached, block_groups, build_model, find_blocks, load_config, make_batches, wrap_blocks
from cftdiag.check.subject import Subject, as_subject

#: A subject of fewer real parameters than this is run for real unless told otherwise.
SMALL_MODEL = 10_000_000
#: After this many blocks of one kind failed at the same line, the others of that kind are not tried again.
SAME_FAILURES = 2


def run_task(task: Mapping[str, Any], send: Send, live: Subject | None = None) -> None:
    """Run one pass and ``send`` its messages; never raises for what the user's model does."""
    options = CheckOptions.from_dict(task["options"])
    os.environ.update(options.env)
    torch.set_num_threads(1)
    try:
        with _torch_config(options.torch_config):
            _Pass(task["mode"], task["recipe"], options, send, live).run()
    except InputError as error:
        send({"type": "input_error", "message": str(error)})
    except (EnvironmentUnfit, DepthNotReached) as error:
        send({"type": "unfit", "message": str(error)})
    except OSError as error:
        # a full disk or a closed pipe says nothing about the model
        send({"type": "unfit", "message": f"the pass could not use this machine ({one_line(error)}); free disk space or set TMPDIR"})


class _Pass:
    def __init__(self, mode: str, recipe: Mapping[str, Any], options: CheckOptions, send: Send, live: Subject | None) -> None:
        self.mode, self.recipe, self.options, self.send = mode, recipe, options, send
        self.failures: dict[str, list[Any]] = {}
        self.fullgraph: dict[str, bool] = {}
        self.calls: Counter[str] = Counter()
        self.kinds: dict[str, str] = {}
        self.inherited: set[str] = set()
        self.step_index = 0
        self.progress("build")
        started = time.monotonic()
        self.prepare(live)
        if mode == "auto":
            # the way the subject itself compiles goes first: its recompiles are the ones that training would meet
            whole = self.compile_kwargs.get("fullgraph") and self.subject.wrap is None
            self.mode = "fullgraph" if whole else "collect"
        self.build_seconds = time.monotonic() - started

    def progress(self, phase: str, **more: Any) -> None:
        self.send({"type": "progress", "phase": phase, "mode": self.mode, **more})

    # ---- what is checked ----

    def prepare(self, live: Subject | None) -> None:
        if live is None and self.recipe["type"] in ("config", "hub"):
            self.prepare_config()
            return
        subject = live if live is not None else as_subject(_call_builder(self.recipe), self.recipe["name"])
        self.prepare_subject(subject)

    def prepare_config(self) -> None:
        o = self.options.for_config()
        assert o.lengths is not None and o.batch_size is not None and o.attn is not None and o.dtype is not None
        self.options = o
        real = o.fast_forward == "never"
        try:
            config = load_config(self.recipe["config"]) if self.recipe["type"] == "config" else _hub_config(self.recipe["name"], o.trust_remote_code)
            layers: Any = None if o.layers == "all" else o.layers if o.layers == "auto" else int(o.layers or 0)
            model = build_model(config, attn=o.attn, dtype=o.dtype, layers=layers, weights=real)
            lengths = [_round_up(n, o.pad_to_multiple_of) for n in o.lengths]
            batches = make_batches(model.config, lengths=lengths, batch_size=o.batch_size, packed=o.packed, flash_varlen=o.flash_varlen, model=model)
        except ValueError as error:
            raise InputError(str(error)) from error
        self.weightless = not real
        self.subject = Subject(model=model, batches=[b.kwargs for b in batches], compile_kwargs={})
        self.shapes = [(b.batch_size, b.length) for b in batches]
        self.own_step = None
        self.compile_kwargs: dict[str, Any] = {"dynamic": DYNAMIC[o.dynamic or "true"], "fullgraph": o.fullgraph}

    def prepare_subject(self, subject: Subject) -> None:
        self.options.for_subject()
        self.subject = subject
        mode = self.options.fast_forward
        parameters = list(subject.model.parameters())
        meta = any(p.is_meta for p in parameters)
        small = sum(p.numel() for p in parameters) < SMALL_MODEL
        if mode == "never" and meta:
            raise InputError("the model's parameters are on the meta device, so it cannot be run for real; leave --fast-forward at auto")
        self.weightless = mode == "always" or (mode == "auto" and (meta or not small))
        if self.weightless:
            if meta:
                with fastforward.SkipMode():
                    subject.model.to_empty(device="cpu")
            fastforward.mark_weights(subject.model)
        self.shapes = [_batch_shape(b) for b in subject.batches]
        self.own_step = subject.step or _default_step
        self.compile_kwargs = dict(subject.compile_kwargs)
        if self.options.dynamic is not None:
            self.compile_kwargs["dynamic"] = DYNAMIC[self.options.dynamic]
        if self.options.fullgraph is not None:
            self.compile_kwargs["fullgraph"] = self.options.fullgraph

    # ---- compiling ----

    def backend(self) -> tuple[Any, str]:
        """(backend, depth it reaches)."""
        name = self.options.compile_backend or os.environ.get("TORCH_COMPILE_BACKEND") or self.compile_kwargs.pop("backend", None)
        self.compile_kwargs.pop("backend", None)
        if self.weightless:
            if name not in (None, "eager", "aot_eager"):
                raise InputError(
                    f"backend {name!r} would run compiled code on weights that are not there; use eager or aot_eager, "
                    "or --fast-forward never on a small model"
                )
            depth = "trace" if name == "eager" else self.options.depth
            return fastforward.backend_for(depth), depth
        if name is None:
            name = "eager" if self.options.depth == "trace" else "aot_eager"
        depth = {"eager": "trace", "aot_eager": "joint"}.get(name, "run") if isinstance(name, str) else "run"
        return _lookup(name), depth

    def compile_all(self, recorder: Recorder) -> None:
        model, subject = self.subject.model, self.subject
        self.step_function = self.own_step
        if self.mode == "eager":
            self.depth, self.blocks = "run", []
            self.program = None
            if self.own_step is None:
                self.program = wrap_blocks(model, _blocks(model, self.options.blocks), ac=self.options.ac, world_size=self.options.world_size)
            return
        backend, self.depth = self.backend()
        if subject.wrap is not None:
            wrapped = subject.wrap(model)
            self.blocks = _blocks(model, self.options.blocks, required=False)
            self.model_to_run = wrapped if wrapped is not None else model
            self.program = None
            return
        kwargs = dict(self.compile_kwargs, **self.options.compile_kwargs)
        kwargs["fullgraph"] = self.mode == "fullgraph"
        kwargs["backend"] = counting(backend, recorder)
        wanted = tuple(subject.blocks or ()) or self.options.blocks

        def compile_one(target: Any, name: str) -> Any:
            if isinstance(target, torch.nn.Module):
                target.compile(**kwargs)
                track(target, name, recorder)
                self.isolate(target, name)
                return target
            return torch.compile(target, **kwargs)

        self.blocks = _blocks(model, wanted)
        self.kinds = {fqn: g.label for g in block_groups(model, self.blocks) for fqn in g.fqns}
        self.program = wrap_blocks(
            model, self.blocks, ac=self.options.ac, world_size=self.options.world_size, compile=compile_one, scope=self.options.compile_scope
        )
        self.model_to_run = self.program.model

    def isolate(self, module: torch.nn.Module, fqn: str) -> None:
        """Count calls; in the fullgraph pass keep a block's failure to itself and run the block eagerly."""
        compiled = module._compiled_call_impl
        assert compiled is not None

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[fqn] += 1
            if self.mode != "fullgraph":
                return compiled(*args, **kwargs)
            if self.fullgraph.get(fqn, True) and not self.known_failure(fqn):
                try:
                    result = compiled(*args, **kwargs)
                    self.fullgraph.setdefault(fqn, True)
                    return result
                except Exception as error:
                    if not _is_compile_failure(error):
                        raise
                    self.fullgraph[fqn] = False
                    self.failures.setdefault(self.kinds.get(fqn, fqn), []).append(_failure_key(error))
            return module._call_impl(*args, **kwargs)  # type: ignore[misc]

        module._compiled_call_impl = call

    def known_failure(self, fqn: str) -> bool:
        failures = self.failures.get(self.kinds.get(fqn, fqn), ())
        if fqn not in self.fullgraph and len(failures) >= SAME_FAILURES and len(set(failures)) == 1:
            self.fullgraph[fqn] = False
            self.inherited.add(fqn)
            return True
        return False

    # ---- running ----

    def run(self) -> None:
        fastforward.reset()
        recorder = Recorder(on_event=lambda event: self.send({"type": "event", "event": event.to_dict()}))
        skip: Any = fastforward.SkipMode if self.weightless else contextlib.nullcontext
        losses: list[Any] = []
        with recorder, fastforward.routing_policy(self.options.routing), warnings_kept_quiet():
            with skip():
                self.compile_all(recorder)
            recorder.watch(self.subject.model)
            self.describe()
            try:
                for i, batch in enumerate(self.subject.batches):
                    self.one_step(i, batch, recorder, skip, losses)
            except (InputError, EnvironmentUnfit, DepthNotReached, OSError):
                raise
            except Exception as error:  # noqa: BLE001
                # whatever training would have met here is a result; the driver finds out whose fault it is
                self.send(self.raised(error))
            self.result(recorder, losses)

    def one_step(self, i: int, batch: Mapping[str, Any], recorder: Recorder, skip: Any, losses: list[Any]) -> None:
        self.step_index = recorder.step = i + 1
        batch_size, length = self.shapes[i]
        self.progress("step", step=i + 1, of=len(self.subject.batches), length=length)
        started = time.monotonic()
        model = getattr(self, "model_to_run", self.subject.model)
        if self.subject.before_step is not None:
            self.subject.before_step(self.subject.model, i)
        with skip():
            if self.step_function is not None:
                losses.append(self.step_function(model, dict(batch)))
            else:
                assert self.program is not None
                self.program.step(dict(batch))
                self.program.zero_grad()
        self.send({"type": "step", "step": i + 1, "batch_size": batch_size, "length": length, "seconds": time.monotonic() - started})

    def describe(self) -> None:
        model = self.subject.model
        self.send(
            {
                "type": "program",
                "mode": self.mode,
                "depth": self.depth,
                "weightless": self.weightless,
                "parameters": sum(p.numel() for p in model.parameters()),
                "model_class": type(model).__name__,
                "model_type": getattr(getattr(model, "config", None), "model_type", None),
                "compile_kwargs": {k: v for k, v in self.compile_kwargs.items() if k != "backend"},
                "wrap": self.subject.wrap is not None,
                "blocks": [
                    {"fqn": fqn, "class": type(module).__name__, "kind": self.kinds.get(fqn, type(module).__name__), "index": _index(fqn)}
                    for fqn, module in self.blocks
                ],
                "steps": [{"step": i + 1, "batch_size": b, "length": n} for i, (b, n) in enumerate(self.shapes)],
                "build_seconds": self.build_seconds,
            }
        )

    def raised(self, error: BaseException) -> dict[str, Any]:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not _is_library(f.filename)] or list(frames)
        last = own[-1] if own else None
        return {
            "type": "raised",
            "error": type(error).__name__,
            "message": " ".join(str(error).split())[:2000],
            "compile": _is_compile_failure(error) or _is_checkpoint_failure(error),
            "where": {"file": last.filename, "line": last.lineno, "function": last.name, "code": last.line} if last else None,
            "step": self.step_index,
        }

    def result(self, recorder: Recorder, losses: list[Any]) -> None:
        checked = None
        if self.subject.check is not None and self.mode != "fullgraph":
            try:
                checked = self.subject.check(self.subject.model, losses)
            except Exception as error:  # noqa: BLE001 - the user's own check is reported, never a source of causes
                checked = {"raised": one_line(error)}
        self.send(
            {
                "type": "result",
                "graphs": {fqn: sorted(ids) for fqn, ids in recorder.graphs.items()},
                "fullgraph": self.fullgraph,
                "inherited": sorted(self.inherited),
                "calls": dict(self.calls),
                "undetermined": fastforward.undetermined() if self.weightless else [],
                "check": _jsonable(checked),
                "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            }
        )


# ---- helpers ----


def _call_builder(recipe: Mapping[str, Any]) -> object:
    path, name = Path(recipe["path"]), recipe["attr"]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: importing it raised {one_line(error)}{_at(error, path)}") from error
    builder = getattr(module, name, None)
    if not callable(builder):
        raise InputError(f"{path}: has no function {name!r}; define {name}() or name another after the colon")
    try:
        torch.manual_seed(0)
        return builder()
    except Exception as error:
        raise InputError(f"{recipe['name']} raised {one_line(error)}{_at(error, path)}") from error


def _at(error: BaseException, path: Path) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""


def _hub_config(name: str, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    from cftdiag.check import catalogue

    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except Exception as error:
        close = catalogue.close_matches(name.rpartition("/")[2])
        hint = f"catalogue models of a like name: {', '.join(close)}" if close else "`cftdiag models` lists models that need no hub"
        if "trust_remote_code" in str(error):
            hint = "it brings its own code; pass --trust-remote-code if you trust it"
        raise InputError(f"{name}: its config could not be read from the hub or its cache ({type(error).__name__}); {hint}") from error


def _blocks(model: torch.nn.Module, globs: Sequence[str], required: bool = True) -> list[tuple[str, torch.nn.Module]]:
    try:
        return list(find_blocks(model, list(globs) or None))
    except ValueError as error:
        if required:
            raise InputError(str(error)) from error
        return []


def _default_step(model: torch.nn.Module, batch: Mapping[str, Any]) -> Any:
    """Forward, mean square of the first floating output, backward."""
    output = model(**batch)
    tensors = [x for x in torch.utils._pytree.tree_leaves(_plain(output)) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if not tensors:
        raise InputError("the model returned no floating tensor to train on; give Subject(step=...) for your own training step")
    loss = tensors[0].float().pow(2).mean()
    if loss.requires_grad:
        loss.backward()
        model.zero_grad(set_to_none=True)
    return loss.detach()


def _plain(output: Any) -> Any:
    return dict(output) if isinstance(output, Mapping) else output


def _batch_shape(batch: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(rows, length) of the first tensor with a batch and a sequence dimension."""
    for value in batch.values():
        if isinstance(value, torch.Tensor) and value.dim() >= 2:
            return value.shape[0], value.shape[1]
    return None, None


def _is_compile_failure(error: BaseException) -> bool:
    import torch._dynamo.exc as exc
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

    return isinstance(error, (exc.TorchDynamoException, GuardOnDataDependentSymNode, ConstraintViolationError))


def _is_checkpoint_failure(error: BaseException) -> bool:
    from torch.utils.checkpoint import CheckpointError

    return isinstance(error, CheckpointError)


def _failure_key(error: BaseException) -> tuple[str, str]:
    stack = getattr(error, "real_stack", None)
    last = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else " ".join(str(error).split())[:200]
    return type(error).__name__, last


def _is_library(filename: str) -> bool:
    return filename.startswith(os.path.dirname(torch.__file__)) or filename.startswith(os.path.dirname(__file__)) or filename.startswith("<")


def _index(fqn: str) -> int | None:
    numbers = [part for part in fqn.split(".") if part.isdigit()]
    return int(numbers[-1]) if numbers else None


def _round_up(n: int, multiple: int | None) -> int:
    return n if not multiple else -(-n // multiple) * multiple


def _lookup(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    from torch._dynamo import lookup_backend
    from torch._dynamo.exc import InvalidBackend

    try:
        return lookup_backend(name)
    except InvalidBackend as error:
        raise InputError(f"backend {name!r} is unknown to this torch; use eager, aot_eager or inductor") from error


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


@contextlib.contextmanager
def _torch_config(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set dotted torch config names, restored afterwards; raises :class:`InputError` for one that this torch lacks."""
    with contextlib.ExitStack() as stack:
        for dotted, value in settings.items():
            module_name, name = _split_config(dotted)
            module = importlib.import_module(module_name)
            try:
                stack.enter_context(module.patch(**{name: value}))
            except (AttributeError, TypeError) as error:
                raise InputError(f"this torch has no setting {dotted}") from error
        yield


def _split_config(dotted: str) -> tuple[str, str]:
    head, marker, tail = dotted.partition(".config.")
    if not marker or not head.startswith("torch."):
        raise InputError(f"{dotted!r} is no torch setting; write torch._dynamo.config.NAME or torch._inductor.config.NAME")
    return head + ".config", tail


@contextlib.contextmanager
def warnings_kept_quiet() -> Iterator[None]:
    """The child's stderr goes to a file that is read only after a crash; warnings would bury what matters there."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
