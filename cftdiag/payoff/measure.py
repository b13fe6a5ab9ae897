"""Count a training step twice, in a child: as eager runs it, and as Inductor's code for a target would."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cftdiag import fastforward
from cftdiag.error_text import one_line
from cftdiag.errors import InputError
from cftdiag.options import CheckOptions
from cftdiag.passes.prepare import Prepared, batch_of_shape, blocks_of, prepare
from cftdiag.passes.settings import torch_config
from cftdiag.payoff.eager_work import REST, EagerWork
from cftdiag.payoff.saved import Saved
from cftdiag.recipe import BlockGroup, Program, TrainRecipe, apply_recipe, block_groups
from cftdiag.recipe.loss import CROSS_ENTROPY
from cftdiag.subject import Origin
from cftdiag.target import lowering, sdpa
from cftdiag.target.devices import Device, device
from cftdiag.target.records import Lowered
from cftdiag.target.step_work import Measured, Part, SavedAt, WholeRegion
from cftdiag.target.work import Launch, Work
from cftdiag.torch_private import dynamo
from cftdiag.torch_private.dynamo import is_compile_failure

Progress = Callable[[str], None]
BODY = "body"
WHOLE = ("model", "model+loss")


def measure(
    origin: Origin, options: CheckOptions, target: str, scopes: Sequence[str], progress: Progress
) -> Measured:
    """Count the step of the longest of the lengths. Raises :class:`InputError` for what the user can mend."""
    spec = device(target)
    if spec is None:
        raise InputError(f"--target {target} has no table of peaks; give the name of a GPU")
    if not origin.from_config:
        raise InputError("what compiling gains is told for a model of the catalogue, a config or the hub")
    with torch_config(options.patch.torch_config):
        return _Measure(origin, options, target, spec, progress).run(scopes)


class _Measure:
    def __init__(
        self, origin: Origin, options: CheckOptions, target: str, spec: Device, progress: Progress
    ) -> None:
        wanted = options.for_config()
        assert wanted.subject.lengths is not None and wanted.subject.batch_size is not None
        self.length, self.batch_size = max(wanted.subject.lengths), wanted.subject.batch_size
        self.origin, self.target, self.spec, self.progress = origin, target, spec, progress
        self.options = wanted.with_(fast_forward="always", lengths=(self.length,), target=None)
        self.half = wanted.subject.dtype in ("bfloat16", "float16")

    def run(self, scopes: Sequence[str]) -> Measured:
        self.progress("building the model")
        fastforward.reset()
        prepared = prepare(self.origin, self.options, None)
        model = prepared.subject.model
        with fastforward.SkipMode():
            program = apply_recipe(
                model, blocks_of(model, self.options.subject.blocks), self._recipe(prepared, "block+loss")
            )
            groups = block_groups(model, program.blocks)
            parts = self._eager(prepared, program, groups)
            if set(scopes) != {"none"}:
                parts = self._compiled(prepared, program, groups, parts)
        wholes, refused = [], []
        for scope in (s for s in WHOLE if s in scopes and parts["loss"] is not None):
            try:
                wholes.append(self._whole(scope))
            except Exception as error:
                if not is_compile_failure(error):
                    raise
                refused.append((scope, one_line(error, 160)))
        return self._measured(prepared, program, groups, parts, wholes, refused)

    # ---- eager ----

    def _eager(self, prepared: Prepared, program: Program, groups: Sequence[BlockGroup]) -> dict[str, Any]:
        model = prepared.subject.model
        regions = self._regions(model, program, groups)
        self.progress("counting the eager step")
        counted = EagerWork(regions)
        with _attention_as_on(self.spec), counted.counting():
            program.step(dict(prepared.subject.batches[0]))
        program.zero_grad()
        with _attention_as_on(self.spec):
            saved = self._saved(model, program, regions, self._shapes())

        def part(name: str, region: str, count: int = 1) -> Part:
            return Part(name=name, count=count, eager=counted.work(region), saved_eager=saved[region])

        # What all blocks are given (masks, rotary tables) is kept once, and booked on the first that keeps it.
        self._shared: dict[str, int] = {}
        blocks = {}
        for group in groups:
            one = part(group.label, group.fqns[0], len(group.fqns))
            if len(group.fqns) > 1:
                again = saved[group.fqns[1]]
                self._shared[group.label] = one.saved_eager[0].bytes - again[0].bytes
                one = dataclasses.replace(one, saved_eager=again)
            blocks[group.label] = one
        loss = None if program.own_loss else part("loss", CROSS_ENTROPY)
        return {
            "blocks": blocks,
            "loss": loss,
            "body": self._with_shared(part("body", BODY), groups, saved),
            "rest": part("rest", REST),
        }

    def _with_shared(
        self, body: Part, groups: Sequence[BlockGroup], saved: Mapping[str, tuple[SavedAt, ...]]
    ) -> Part:
        points = body.saved_eager
        for first, second in (group.fqns[:2] for group in groups if len(group.fqns) > 1):
            points = tuple(
                dataclasses.replace(p, bytes=p.bytes + a.bytes - b.bytes)
                for p, a, b in zip(points, saved[first], saved[second], strict=True)
            )
        return dataclasses.replace(body, saved_eager=points)

    def _regions(
        self, model: nn.Module, program: Program, groups: Sequence[BlockGroup]
    ) -> dict[str, nn.Module]:
        regions = dict(program.blocks)
        regions |= {name: region for name, region in program.regions if name == CROSS_ENTROPY}
        body = getattr(model, "base_model", model)
        return regions if body is model else {BODY: body, **regions}

    def _saved(
        self,
        model: nn.Module,
        program: Program,
        regions: Mapping[str, nn.Module],
        shapes_to_run: Sequence[tuple[int, int]],
    ) -> dict[str, tuple[SavedAt, ...]]:
        """What each region keeps for backward at each (batch size, length)."""
        found: dict[str, list[SavedAt]] = {name: [] for name in (*regions, REST)}
        for rows, length in shapes_to_run:
            batch = batch_of_shape(model, rows, length, "", self.options.subject.flash_varlen)
            saved = Saved(model, regions)
            with saved.counting():
                program.step(batch)
            program.zero_grad()
            for name, shapes in found.items():
                shapes.append(SavedAt(batch_size=rows, length=length, bytes=saved.bytes[name]))
        return {name: tuple(shapes) for name, shapes in found.items()}

    def _shapes(self) -> list[tuple[int, int]]:
        """Four: enough for a formula in batch, tokens and the square of the length."""
        half, quarter = max(self.length // 2, 2), max(self.length // 4, 2)
        return list(
            dict.fromkeys(
                [
                    (self.batch_size, self.length),
                    (self.batch_size, half),
                    (self.batch_size, quarter),
                    (self.batch_size + 1, half),
                ]
            )
        )

    # ---- compiled ----

    def _compiled(
        self, prepared: Prepared, program: Program, groups: Sequence[BlockGroup], parts: dict[str, Any]
    ) -> dict[str, Any]:
        first = {g.fqns[0]: g.label for g in groups}
        wanted = [name for name, _ in program.regions if name in first or name == CROSS_ENTROPY]
        lowered = _Lowered()
        model = prepared.subject.model
        for name, region in program.regions:
            if name in wanted:
                self._compile(region, prepared, lowered.of(first.get(name, name)))
        self.progress(f"generating code for {self.target}: {', '.join([*first.values(), 'loss'])}")
        lowered.step(lambda: program.step(dict(prepared.subject.batches[0])))
        program.zero_grad()
        regions = self._regions(model, program, groups)
        # the shape that was lowered alone: another one may be another graph
        saved = self._saved(model, program, regions, self._shapes()[:1])
        chunks = self._chunks()

        def done(part: Part, region: str, times: int = 1) -> Part:
            work = lowered.work(part.name if region in first else region, self.half)
            return dataclasses.replace(
                part,
                compiled=work.times(times),
                saved_compiled=tuple(
                    dataclasses.replace(p, bytes=p.bytes - self._shared.get(part.name, 0))
                    for p in saved[region]
                ),
                graphs=lowered.graphs(part.name if region in first else region),
                compile_seconds=lowered.seconds(part.name if region in first else region),
            )

        blocks = {g.label: done(parts["blocks"][g.label], g.fqns[0]) for g in groups}
        loss = None if parts["loss"] is None else done(parts["loss"], CROSS_ENTROPY, chunks)
        return {**parts, "blocks": blocks, "loss": loss}

    def _chunks(self) -> int:
        """How many chunks the loss runs on."""
        return max(1, min(self._loss_chunks, self.length))

    def _compile(self, region: nn.Module, prepared: Prepared, on_graph: Callable[[Lowered], None]) -> None:
        kwargs = {k: v for k, v in prepared.compile_kwargs.items() if k in ("dynamic", "fullgraph")}
        backend = lowering.backend(self.target, on_graph=on_graph)
        region.compile(backend=backend, **{"dynamic": True, "fullgraph": True, **kwargs})

    def _whole(self, scope: str) -> WholeRegion:
        """With the fewest layers that hold every kind: each more adds what a block adds."""
        self.progress(f"generating code for {self.target}: scope {scope}, few layers")
        dynamo.reset()
        fastforward.reset()
        prepared = prepare(self.origin, self.options.with_(layers="auto"), None)
        model = prepared.subject.model
        lowered = _Lowered()
        with fastforward.SkipMode():
            program = apply_recipe(
                model,
                blocks_of(model, self.options.subject.blocks),
                self._recipe(prepared, scope),
                compile=lambda region, name: self._compile(region, prepared, lowered.of(scope)),
            )
            groups = block_groups(model, program.blocks)
            lowered.step(lambda: program.step(dict(prepared.subject.batches[0])))
        return WholeRegion(
            scope=scope,
            compiled=lowered.work(scope, self.half),
            blocks=tuple((g.label, len(g.fqns)) for g in groups),
            graphs=lowered.graphs(scope),
            compile_seconds=lowered.seconds(scope),
        )

    # ---- together ----

    def _recipe(self, prepared: Prepared, scope: str) -> TrainRecipe:
        recipe = prepared.training
        self._loss_chunks = recipe.loss_chunks or 1
        if recipe.loss_chunks is None:  # the model's own forward has the loss
            scope = {"block+loss": "block", "model+loss": "model"}.get(scope, scope)
        return dataclasses.replace(recipe, scope=scope)

    def _measured(
        self,
        prepared: Prepared,
        program: Program,
        groups: Sequence[BlockGroup],
        parts: dict[str, Any],
        wholes: Sequence[WholeRegion],
        refused: Sequence[tuple[str, str]],
    ) -> Measured:
        model = prepared.subject.model
        blocks = dict(program.blocks)
        of_block = {name: _parameter_bytes(block.parameters()) for name, block in blocks.items()}
        everything = list(model.parameters())
        trained = [p for p in everything if p.requires_grad]
        head = getattr(model, "get_output_embeddings", lambda: None)()
        vocabulary = int(getattr(head, "out_features", 0) or 0)
        return Measured(
            target=self.target,
            batch_size=self.batch_size,
            length=self.length,
            ac=self.options.compile.ac,
            dtype=self.options.subject.dtype or "bfloat16",
            blocks=tuple(parts["blocks"].values()),
            loss=parts["loss"],
            body=parts["body"],
            rest=parts["rest"],
            wholes=tuple(wholes),
            parameters=sum(p.numel() for p in everything),
            trained=sum(p.numel() for p in trained),
            parameter_bytes=_parameter_bytes(everything),
            trained_bytes=_parameter_bytes(trained),
            block_bytes=max(of_block.values(), default=0),
            root_bytes=_parameter_bytes(everything) - sum(of_block.values()),
            logits_elements=self.batch_size * -(-self.length // self._chunks()) * vocabulary,
            refused=tuple(refused),
            notes=tuple(prepared.assumed),
        )


class _Lowered:
    """Graphs by what they belong to, and the seconds that each took."""

    def __init__(self) -> None:
        self._graphs: dict[str, list[Lowered]] = {}
        self._seconds: dict[str, float] = {}
        self._since = 0.0

    def of(self, name: str) -> Callable[[Lowered], None]:
        """A receiver of the graphs of one region."""

        def on_graph(graph: Lowered) -> None:
            now = time.monotonic()
            self._graphs.setdefault(name, []).append(graph)
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
            self._since = now

        return on_graph

    def step(self, run: Callable[[], Any]) -> None:
        self._since = time.monotonic()
        run()

    def work(self, name: str, half: bool) -> Work:
        launches: list[Launch] = []
        for graph in self._graphs.get(name, ()):
            launches += [
                Launch(name=k.name, bytes=k.bytes, flops=k.flops, product=k.category == "template", half=half)
                for k in graph.kernels
            ]
            launches += [
                Launch(name=e.op, bytes=e.bytes, flops=e.flops or 0, product=e.flops is not None, half=half)
                for e in graph.externs
            ]
        return Work.of(launches)

    def graphs(self, name: str) -> int:
        return sum(not graph.backward for graph in self._graphs.get(name, ()))

    def seconds(self, name: str) -> float:
        return round(self._seconds.get(name, 0.0), 2)


@contextlib.contextmanager
def _attention_as_on(spec: Device) -> Iterator[None]:
    """Eager attention by the kernel that torch would choose on the device."""
    plain = F.scaled_dot_product_attention

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        return sdpa.attention_on(spec, query, key, value, *args, **kwargs)

    F.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain


def _parameter_bytes(parameters: Any) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)
