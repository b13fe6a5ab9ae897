"""Count a training step twice, in a child: as eager runs it, and as Inductor's code for a target would."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cftdiag import fastforward
from cftdiag.error_text import one_line
from cftdiag.errors import InputError
from cftdiag.options import SCOPE_VARIABLE, CheckOptions
from cftdiag.passes.prepare import Prepared, batch_of_shape, blocks_of, prepare
from cftdiag.passes.settings import process_kept
from cftdiag.payoff.eager_work import REST, EagerWork
from cftdiag.payoff.saved import Saved
from cftdiag.recipe import BlockGroup, Program, TrainRecipe, apply_recipe, block_groups
from cftdiag.recipe.activation_checkpointing import is_saved
from cftdiag.subject import Origin
from cftdiag.target import lowering, sdpa
from cftdiag.target.devices import Device, device
from cftdiag.target.records import Lowered, launches
from cftdiag.target.step_work import Measured, Part, SavedAt, WholeRegion
from cftdiag.target.work import Work
from cftdiag.torch_private import dynamo
from cftdiag.torch_private.dynamo import is_compile_failure
from cftdiag.torch_settings import torch_config

Progress = Callable[[str], None]
BODY = "body"
WHOLE = ("model", "model+loss")


def measure(
    origin: Origin,
    options: CheckOptions,
    target: str,
    scopes: Sequence[str],
    progress: Progress,
    shapes: Sequence[tuple[int, int]] = (),
) -> tuple[Measured, ...]:
    """Count the step at each (rows, length) of ``shapes``, the largest first; without shapes at the longest of the
    lengths, or at the largest batch of a model of the user's own. Raises :class:`InputError` for what the user
    can mend.
    """
    spec = device(target)
    if spec is None:
        raise InputError(f"--target {target} has no table of peaks; give the name of a GPU")
    with torch_config(options.patch.torch_config):
        return _Measure(origin, options, target, spec, progress, shapes).run(scopes)


class _Measure:
    def __init__(
        self,
        origin: Origin,
        options: CheckOptions,
        target: str,
        spec: Device,
        progress: Progress,
        shapes: Sequence[tuple[int, int]],
    ) -> None:
        self.origin, self.target, self.spec, self.progress = origin, target, spec, progress
        wanted = options.for_config() if origin.from_config else options.for_subject()
        self.options = wanted.with_(fast_forward="always", target=None)
        self._asked = list(shapes)
        #: (kind of block, shape) -> bytes that all blocks of the kind are given.
        self._shared: dict[tuple[str, tuple[int, int]], int] = {}

    def run(self, scopes: Sequence[str]) -> tuple[Measured, ...]:
        self.progress("building the model")
        fastforward.reset()
        prepared = prepare(self.origin, self.options, None)
        self._stored = _stored_bytes(prepared.subject.model)
        _cast(prepared.subject.model, prepared.training.dtype)
        if prepared.subject.wrap is not None:
            raise InputError(
                "what a compile scope gains is told for a model that does not compile itself; leave out the Subject's wrap"
            )
        self.half = _dtype_of(prepared.subject.model) in ("bfloat16", "float16")
        self._places = self._given(prepared)
        model = prepared.subject.model
        with fastforward.SkipMode():
            program = apply_recipe(
                model, blocks_of(model, self.options.subject.blocks), self._recipe(prepared, "block+loss")
            )
            groups = block_groups(model, program.blocks)
            # all of eager first: what is compiled stays so
            counted = [self._eager(prepared, program, groups, at) for at in self._places]
            if set(scopes) != {"none"}:
                counted = [
                    self._compiled(prepared, program, groups, at, parts)
                    for at, parts in zip(self._places, counted, strict=True)
                ]
        wholes, refused = [], []
        for scope in (s for s in WHOLE if s in scopes and (s == "model" or not program.own_loss)):
            try:
                wholes.append(self._whole(scope))
            except Exception as error:
                if not is_compile_failure(error):
                    raise
                refused.append((scope, one_line(error, 160)))
        first, *more = (
            self._measured(prepared, program, at, parts)
            for at, parts in zip(self._places, counted, strict=True)
        )
        return dataclasses.replace(first, wholes=tuple(wholes), refused=tuple(refused)), *more

    # ---- batches ----

    def _given(self, prepared: Prepared) -> list[tuple[int, int]]:
        """(rows, length) to count, the most tokens first."""
        if self._asked and self.origin.from_config:
            places = self._asked
        elif self.origin.from_config:
            wanted = self.options.subject
            assert wanted.lengths is not None and wanted.batch_size is not None
            multiple = wanted.pad_to_multiple_of or 1
            places = [(wanted.batch_size, -(-max(wanted.lengths) // multiple) * multiple)]
        else:
            places = [max(self._own_shapes(prepared), key=lambda at: at[0] * at[1])]
        return sorted(dict.fromkeys(places), key=lambda at: -at[0] * at[1])

    def _own_shapes(self, prepared: Prepared) -> list[tuple[int, int]]:
        """Of the batches of a model of the user's own; one without rows and length counts as one token."""
        return list(dict.fromkeys((rows or 1, length or 1) for rows, length in prepared.shapes)) or [(1, 1)]

    def _batch(self, prepared: Prepared, at: tuple[int, int]) -> dict[str, Any]:
        if self.origin.from_config:
            batch = batch_of_shape(prepared.subject.model, *at, "", self.options.subject.flash_varlen)
            return prepared.extend(batch)
        own = zip(prepared.subject.batches, prepared.shapes, strict=True)
        return next(dict(b) for b, (rows, length) in own if (rows or 1, length or 1) == at)

    def _step(self, prepared: Prepared, program: Program, at: tuple[int, int]) -> None:
        batch = self._batch(prepared, at)
        if prepared.subject.before_step is not None:
            prepared.subject.before_step(prepared.subject.model, 0)
        if prepared.step is not None:
            prepared.step(prepared.subject.model, batch)
        else:
            program.step(batch)

    # ---- eager ----

    def _eager(
        self, prepared: Prepared, program: Program, groups: Sequence[BlockGroup], at: tuple[int, int]
    ) -> dict[str, Any]:
        model = prepared.subject.model
        regions = self._regions(model, program, groups)
        self.progress(f"counting the eager step of {at[0]} x {at[1]}")
        counted = EagerWork(regions)
        with sdpa.eager_as_on(self.spec), counted.counting():
            self._step(prepared, program, at)
        program.zero_grad()
        with sdpa.eager_as_on(self.spec):
            saved = self._saved(prepared, program, regions, self._shapes(prepared, at), eager=True)

        def part(name: str, region: str, count: int = 1) -> Part:
            return Part(name=name, count=count, eager=counted.work(region), saved_eager=saved[region])

        # What all blocks are given (masks, rotary tables) is kept once, and booked on the first that keeps it.
        blocks = {}
        for group in groups:
            one = part(group.label, group.fqns[0], len(group.fqns))
            if len(group.fqns) > 1:
                again = saved[group.fqns[1]]
                for first, second in zip(one.saved_eager, again, strict=True):
                    self._shared[group.label, (first.batch_size, first.length)] = first.bytes - second.bytes
                one = dataclasses.replace(one, saved_eager=again)
            blocks[group.label] = one
        loss = None if program.own_loss else part("loss", program.loss.name)
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
        regions |= {name: region for name, region in program.regions if name == program.loss.name}
        body = getattr(model, "base_model", model)
        return regions if body is model else {BODY: body, **regions}

    def _saved(
        self,
        prepared: Prepared,
        program: Program,
        regions: Mapping[str, nn.Module],
        shapes_to_run: Sequence[tuple[int, int]],
        *,
        eager: bool = False,
    ) -> dict[str, tuple[SavedAt, ...]]:
        """What each region keeps for backward at each (batch size, length)."""
        # what a compiled region keeps is the partitioner's affair, and autograd's hooks see all of it
        selective = eager and self.options.compile.ac == "selective"
        found: dict[str, list[SavedAt]] = {name: [] for name in (BODY, *regions, REST)}
        for at in shapes_to_run:
            saved = Saved(prepared.subject.model, regions, is_saved if selective else None)
            with saved.counting():
                self._step(prepared, program, at)
            program.zero_grad()
            for name, shapes in found.items():
                shapes.append(SavedAt(batch_size=at[0], length=at[1], bytes=saved.bytes[name]))
        return {name: tuple(shapes) for name, shapes in found.items()}

    def _shapes(self, prepared: Prepared, at: tuple[int, int]) -> list[tuple[int, int]]:
        """The one that is counted first; of a model that is built here four, which are enough for a formula in
        batch, tokens and the square of the length, else those that there are.
        """
        rows, length = at
        if not self.origin.from_config:
            return list(dict.fromkeys([at, *self._own_shapes(prepared)]))[:4]
        half, quarter = max(length // 2, 2), max(length // 4, 2)
        return list(dict.fromkeys([at, (rows, half), (rows, quarter), (rows + 1, half)]))

    # ---- compiled ----

    def _compiled(
        self,
        prepared: Prepared,
        program: Program,
        groups: Sequence[BlockGroup],
        at: tuple[int, int],
        parts: dict[str, Any],
    ) -> dict[str, Any]:
        first = {g.fqns[0]: g.label for g in groups}
        wanted = [name for name, _ in program.regions if name in first or name == program.loss.name]
        lowered = _Lowered()
        model = prepared.subject.model
        # code is generated for sizes like these: what another shape left behind would serve this one too
        dynamo.reset()
        for name, region in program.regions:
            if name in wanted:
                self._compile(region, prepared, lowered.of(first.get(name, name)))
        doing = ", ".join([*first.values(), *(["loss"] if parts["loss"] is not None else [])])
        self.progress(f"generating code for {self.target}, {at[0]} x {at[1]}: {doing}")
        lowered.step(lambda: self._step(prepared, program, at))
        program.zero_grad()
        regions = self._regions(model, program, groups)
        # the shape that was lowered alone, where another one may be another graph
        lowered.open = False
        alike = not self.origin.from_config and prepared.compile_kwargs.get("dynamic") is True
        saved = self._saved(prepared, program, regions, self._shapes(prepared, at) if alike else [at])
        chunks = self._chunks(at)

        def done(part: Part, region: str, times: int = 1) -> Part:
            work = lowered.work(part.name if region in first else region, self.half)
            return dataclasses.replace(
                part,
                compiled=work.times(times),
                saved_compiled=tuple(
                    dataclasses.replace(
                        p, bytes=p.bytes - self._shared.get((part.name, (p.batch_size, p.length)), 0)
                    )
                    for p in saved[region]
                ),
                graphs=lowered.graphs(part.name if region in first else region),
                compile_seconds=lowered.seconds(part.name if region in first else region),
            )

        blocks = {g.label: done(parts["blocks"][g.label], g.fqns[0]) for g in groups}
        loss = None if parts["loss"] is None else done(parts["loss"], program.loss.name, chunks)
        return {**parts, "blocks": blocks, "loss": loss}

    def _chunks(self, at: tuple[int, int]) -> int:
        """How many chunks the loss runs on."""
        return max(1, min(self._loss_chunks, at[1]))

    def _compile(self, region: nn.Module, prepared: Prepared, on_graph: Callable[[Lowered], None]) -> None:
        kwargs = {k: v for k, v in prepared.compile_kwargs.items() if k in ("dynamic", "fullgraph")}
        backend = lowering.backend(self.target, on_graph=on_graph)
        default = {"dynamic": True if self.origin.from_config else None, "fullgraph": True}
        region.compile(backend=backend, **{**default, **kwargs})

    def _whole(self, scope: str) -> WholeRegion:
        """With the fewest layers that hold every kind, where the model is built here: each more adds what a block
        adds.
        """
        few = self.origin.from_config
        self.progress(f"generating code for {self.target}: scope {scope}{', few layers' if few else ''}")
        dynamo.reset()
        fastforward.reset()
        # a method changes the model for the scope that it is compiled under
        options = self.options.with_(compile_scope=scope, **({"layers": "auto"} if few else {}))
        with process_kept({SCOPE_VARIABLE: scope}):
            prepared = prepare(self.origin, options, None)
        model = prepared.subject.model
        _cast(model, prepared.training.dtype)
        lowered = _Lowered()
        at = self._places[0]
        with fastforward.SkipMode():
            program = apply_recipe(
                model,
                blocks_of(model, self.options.subject.blocks),
                self._recipe(prepared, scope),
                compile=lambda region, name: self._compile(region, prepared, lowered.of(scope)),
            )
            groups = block_groups(model, program.blocks)
            lowered.step(lambda: self._step(prepared, program, at))
            program.zero_grad()
            saved = self._saved(prepared, program, {scope: dict(program.regions).popitem()[1]}, [at])
        return WholeRegion(
            scope=scope,
            compiled=lowered.work(scope, self.half),
            blocks=tuple((g.label, len(g.fqns)) for g in groups),
            graphs=lowered.graphs(scope),
            compile_seconds=lowered.seconds(scope),
            saved=saved[scope],
        )

    # ---- together ----

    def _recipe(self, prepared: Prepared, scope: str) -> TrainRecipe:
        recipe = prepared.training
        self._loss_chunks = recipe.loss_chunks or 1
        if recipe.loss_chunks is None:  # the model's own forward has the loss
            scope = {"block+loss": "block", "model+loss": "model"}.get(scope, scope)
        return dataclasses.replace(recipe, scope=scope)

    def _measured(
        self, prepared: Prepared, program: Program, at: tuple[int, int], parts: dict[str, Any]
    ) -> Measured:
        model = prepared.subject.model
        blocks = dict(program.blocks)
        of_block = {name: _parameter_bytes(block.parameters()) for name, block in blocks.items()}
        everything = list(model.parameters())
        trained = [p for p in everything if p.requires_grad]
        head = getattr(model, "get_output_embeddings", lambda: None)()
        vocabulary = int(getattr(head, "out_features", 0) or 0)
        rows, length = at
        return Measured(
            target=self.target,
            batch_size=rows,
            length=length,
            ac=self.options.compile.ac,
            dtype=_dtype_of(model),
            blocks=tuple(parts["blocks"].values()),
            loss=parts["loss"],
            body=parts["body"],
            rest=parts["rest"],
            parameters=sum(p.numel() for p in everything),
            trained=sum(p.numel() for p in trained),
            parameter_bytes=self._stored[0],
            trained_bytes=self._stored[1],
            gathered_bytes=_parameter_bytes(everything),
            always_sharded=prepared.training.always_sharded,
            block_bytes=max(of_block.values(), default=0),
            root_bytes=_parameter_bytes(everything) - sum(of_block.values()),
            logits_elements=rows * -(-length // self._chunks(at)) * vocabulary,
            notes=tuple(prepared.assumed),
        )


class _Lowered:
    """Graphs by what they belong to, and the seconds that each took."""

    def __init__(self) -> None:
        self._graphs: dict[str, list[Lowered]] = {}
        self._seconds: dict[str, float] = {}
        self._since = 0.0
        self.open = True
        """Graphs that come later are of no interest."""

    def of(self, name: str) -> Callable[[Lowered], None]:
        """A receiver of the graphs of one region."""

        def on_graph(graph: Lowered) -> None:
            if not self.open:
                return
            now = time.process_time()
            self._graphs.setdefault(name, []).append(graph)
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
            self._since = now

        return on_graph

    def step(self, run: Callable[[], Any]) -> None:
        self._since = time.process_time()
        run()

    def work(self, name: str, half: bool) -> Work:
        return Work.of(one for graph in self._graphs.get(name, ()) for one in launches(graph, half))

    def graphs(self, name: str) -> int:
        return sum(not graph.backward for graph in self._graphs.get(name, ()))

    def seconds(self, name: str) -> float:
        return round(self._seconds.get(name, 0.0), 2)


def _stored_bytes(model: nn.Module) -> tuple[int, int]:
    """Of all parameters and of the trained ones, as they are between two steps."""
    everything = list(model.parameters())
    return _parameter_bytes(everything), _parameter_bytes(p for p in everything if p.requires_grad)


def _cast(model: nn.Module, dtype: str | None) -> None:
    """Give the parameters the dtype that FSDP2 gathers them in."""
    if dtype is None:
        return
    with fastforward.SkipMode(), torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and type(parameter) is nn.Parameter:
                parameter.data = parameter.data.to(getattr(torch, dtype))
    fastforward.mark_weights(model)


def _parameter_bytes(parameters: Any) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _dtype_of(model: nn.Module) -> str:
    """Name of the dtype that most parameters have."""
    counts: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    most = max(counts, key=lambda dtype: counts[dtype], default=torch.float32)
    return str(most).removeprefix("torch.")
