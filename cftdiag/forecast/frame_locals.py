"""The locals of a compiled region as a function of batch size and length.

A region's frame is described when it is called, tensors by their geometry alone. From a few descriptions each
dimension, stride and integer gets a formula; then locals for any shape are made of tensors that have the
right geometry over memory that is never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from cftdiag.capture.cache_entries import Call
from cftdiag.forecast.formulas import Formula, Sample, fit
from cftdiag.torch_private.dynamo import MARKS
from cftdiag.torch_private.objects import view_base

_PLAIN = (type(None), bool, str, float, bytes, torch.dtype, torch.device)
#: Address space, not memory: tensors of any length lie in it.
_SPACE = 1 << 42
_NORESERVE = 0x4000  # MAP_NORESERVE on Linux; the mmap module names it from Python 3.13 on


class Unexplained(ValueError):
    """A part of a frame that does not follow batch size and length in a way known here; ``str()`` names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """One call: its code, the structure of its locals, and the numbers in it.

    ``structure`` maps a source (``L['args'][0]``) to what must be equal for two calls to be of one kind;
    ``numbers`` maps a source of a number (``L['args'][0].size()[1]``, an integer argument) to its value;
    ``objects`` are the values that are kept as they are, by source.
    """

    code: Any
    state: tuple[Any, ...]
    structure: tuple[tuple[str, Any], ...]
    numbers: Mapping[str, int]
    objects: Mapping[str, Any]

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for calls of one kind."""
        return self.code, self.state, self.structure


def describe(call: Call) -> Described:
    """Describe a call at its start; keeps no tensor of it but parameters and tensor subclasses."""
    structure: list[tuple[str, Any]] = []
    numbers: dict[str, int] = {}
    objects: dict[str, Any] = {}
    seen: dict[int, str] = {}
    for source, value in _leaves("L", call.f_locals):
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
            first = seen.setdefault(id(value), source)
            marks = tuple((name, frozenset(getattr(value, name))) for name in MARKS if hasattr(value, name))
            structure.append(
                (
                    source,
                    (
                        "tensor",
                        value.dtype,
                        value.requires_grad,
                        value.dim(),
                        first,
                        marks,
                        _base(value) is not None,
                    ),
                )
            )
            for i, (size, stride) in enumerate(zip(value.size(), value.stride(), strict=True)):
                numbers[f"{source}.size()[{i}]"] = int(size)
                numbers[f"{source}.stride()[{i}]"] = int(stride)
            numbers[f"{source}.storage_offset()"] = int(value.storage_offset())
        elif type(value) is int:
            structure.append((source, "int"))
            numbers[source] = value
        elif isinstance(value, (tuple, list, dict)):  # a container's own entry: its shape
            structure.append((source, (type(value), tuple(value) if isinstance(value, dict) else len(value))))
        elif isinstance(value, _PLAIN):
            structure.append((source, ("value", value)))
            objects[source] = value
        else:
            structure.append((source, ("object", type(value))))
            objects[source] = value
    return Described(call.code, global_state(), tuple(structure), numbers, objects)


def _leaves(source: str, value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) in (tuple, list):
        yield source, value
        for i, item in enumerate(value):
            yield from _leaves(f"{source}[{i}]", item)
    elif type(value) is dict and all(isinstance(key, str) for key in value):
        if source != "L":
            yield source, value
        for key, item in value.items():
            yield from _leaves(f"{source}[{key!r}]", item)
    else:
        yield source, value
        base = _base(value)
        if base is not None:
            yield f"{source}._base", base


def _base(value: Any) -> torch.Tensor | None:
    """The tensor that a plain view looks into: guards look at its sizes as well."""
    base = view_base(value) if type(value) is torch.Tensor else None
    return base if type(base) is torch.Tensor else None


# ---- global state, which guards look at too ----


def global_state() -> tuple[Any, ...]:
    """Grad mode and autocast of the CPU, as guards see them now."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


@contextlib.contextmanager
def restored(state: tuple[Any, ...]) -> Iterator[None]:
    """The global state in which a call was made."""
    if state == global_state():
        yield
        return
    grad, inference, autocast, dtype = state
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        stack.enter_context(torch.autocast("cpu", dtype=dtype, enabled=autocast))
        yield


# ---- locals for any shape ----


class Frame:
    """Locals of one call for any batch size and length."""

    def __init__(self, samples: Sequence[tuple[int, int, Described]]) -> None:
        """``samples`` are (batch size, length, description), all of one signature. Raises
        :class:`Unexplained`.
        """
        self.example = samples[-1][2]
        self.state = self.example.state
        self.formulas = fit_numbers(samples)
        for source in self.example.objects:
            values = [d.objects[source] for _, _, d in samples]
            if any(value is not values[0] and not _same(value, values[0]) for value in values):
                raise Unexplained(f"{source} is another {type(values[0]).__name__} in each call")
        self._tensors: dict[str, torch.Tensor] = {}
        self._views: list[str] = []
        self._moving = sorted(
            {
                _owner(source)
                for source, f in self.formulas.items()
                if f.constant is None and _owner(source) != source
            }
        )
        self._ints = [
            source for source, f in self.formulas.items() if _owner(source) == source and f.constant is None
        ]
        batch, length, _ = samples[-1]
        self._kinds = dict(self.example.structure)
        for source, kind in self.example.structure:
            if isinstance(kind, tuple) and kind[0] == "tensor" and kind[4] == source and not kind[6]:
                self._tensors[source] = _tensor(kind)
                self._move(source, batch, length)
        self._views = [
            s
            for s, kind in self.example.structure
            if isinstance(kind, tuple) and kind[0] == "tensor" and kind[4] == s and kind[6]
        ]
        self._look(batch, length)
        self._locals = self._build(batch, length)

    def at(self, batch: int, length: int) -> dict[str, Any]:
        """The locals at a shape; valid until the next call of ``at``."""
        for source in self._moving:
            if source in self._tensors and source not in self._views:
                self._move(source, batch, length)
        self._look(batch, length)
        if self._ints or self._views:
            self._locals = self._build(batch, length)
        return self._locals

    def _geometry(self, source: str, batch: int, length: int) -> tuple[list[int], list[int], int]:
        rank = self._kinds[source][3]
        size, stride = (
            [self.formulas[f"{source}.{what}()[{i}]"].at(batch, length) for i in range(rank)]
            for what in ("size", "stride")
        )
        return size, stride, self.formulas[f"{source}.storage_offset()"].at(batch, length)

    def _move(self, source: str, batch: int, length: int) -> None:
        size, stride, offset = self._geometry(source, batch, length)
        with torch.no_grad():
            self._tensors[source].set_(_space(), offset, size, stride)  # type: ignore[call-overload]

    def _look(self, batch: int, length: int) -> None:
        for source in self._views:
            base = self._tensors[self._kinds[f"{source}._base"][4]]
            size, stride, offset = self._geometry(source, batch, length)
            with torch.set_grad_enabled(self._kinds[source][2]):
                self._tensors[source] = _mark(base.as_strided(size, stride, offset), self._kinds[source][5])

    def _build(self, batch: int, length: int) -> dict[str, Any]:
        def make(source: str) -> Any:
            kind = self._kinds[source]
            if kind == "int":
                return self.formulas[source].at(batch, length)
            if kind[0] == "tensor":
                return self._tensors[kind[4]]
            if kind[0] in (tuple, list):
                return kind[0](make(f"{source}[{i}]") for i in range(kind[1]))
            if kind[0] is dict:
                return {key: make(f"{source}[{key!r}]") for key in kind[1]}
            return self.example.objects[source]

        names = [
            source[3:-2]
            for source, _ in self.example.structure
            if source.count("[") == 1 and source.endswith("']")
        ]
        return {name: make(f"L[{name!r}]") for name in names}

    def example_locals(self) -> dict[str, Any]:
        """The locals at the shape set last."""
        return self._locals

    @property
    def sources(self) -> dict[str, str]:
        """Source -> formula over B and S, for the numbers that follow the shape and those that do not."""
        return {source: formula.text for source, formula in self.formulas.items()}

    @property
    def sizes(self) -> tuple[str, ...]:
        """Formulas of all dimensions of the tensors."""
        return tuple(sorted({f.text for source, f in self.formulas.items() if ".size()[" in source}))


def fit_numbers(samples: Sequence[tuple[int, int, Described]]) -> dict[str, Formula]:
    """Formula of each number. Raises :class:`Unexplained` for one that has none."""
    found = {}
    for source in samples[-1][2].numbers:
        points: list[Sample] = [(b, s, d.numbers[source]) for b, s, d in samples]
        formula = fit(points)
        if formula is None:
            shown = ", ".join(f"{v} at {b} x {s}" for b, s, v in points[:3])
            raise Unexplained(f"{source} follows no known formula ({shown})")
        found[source] = formula
    return found


def _owner(source: str) -> str:
    """``L['x'].size()[1]`` -> ``L['x']``."""
    for part in (".size()[", ".stride()[", ".storage_offset()"):
        head, found, _ = source.rpartition(part)
        if found:
            return head
    return source


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, _PLAIN) and a == b


def _tensor(kind: tuple[Any, ...]) -> torch.Tensor:
    return _mark(torch.empty(0, dtype=kind[1], requires_grad=kind[2]), kind[5])


def _mark(tensor: torch.Tensor, marks: tuple[tuple[str, frozenset[int]], ...]) -> torch.Tensor:
    for name, indices in marks:
        setattr(tensor, name, set(indices))
    return tensor


_storage: list[torch.UntypedStorage] = []


def _space() -> torch.UntypedStorage:
    """A storage of more bytes than any tensor needs; none of them is ever touched."""
    if not _storage:
        try:
            memory = mmap.mmap(-1, _SPACE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        except (OSError, ValueError) as error:
            raise Unexplained(f"this machine reserves no address space ({error})") from error
        _storage.append(torch.frombuffer(memory, dtype=torch.uint8).untyped_storage())
    return _storage[0]
