"""From what was counted to what a user asks: the gain of each compile scope, the memory, the break-even step.

Every figure is an estimate by a model that is told with it. The step is taken to last as long as the slower of
device and host. Two pairs of rates bound the gain:

* ``launches hidden``: products reach 65% of the tensor cores' peak and everything else all of the memory's
  bandwidth; the host is never waited for. Compiling then saves only the bytes that it fuses away.
* ``launches seen``: products reach 80% and everything else 80% of the bandwidth, and the host needs 8 us for
  an operator of eager PyTorch and 4 us for a kernel of a compiled graph.

Communication is taken to be hidden, and the optimizer to be one pass over its states. Torch-free.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cftdiag.target.devices import Device
from cftdiag.target.step_work import Measured, Part, SavedAt, StepMemory, WholeRegion
from cftdiag.target.work import Launch, Rates, Seconds, Work, seconds, summary

HIDDEN = "launches hidden"
SEEN = "launches seen"
#: (eager rates, compiled rates) of both bounds.
RATES: Mapping[str, tuple[Rates, Rates]] = {
    HIDDEN: (
        Rates(bandwidth=1.0, products=0.65, host_us=0.0),
        Rates(bandwidth=1.0, products=0.65, host_us=0.0),
    ),
    SEEN: (
        Rates(bandwidth=0.8, products=0.8, host_us=8.0),
        Rates(bandwidth=0.8, products=0.8, host_us=4.0),
    ),
}
#: Building one kernel of Triton takes about this many seconds of a core; generating its code is counted apart.
KERNEL_BUILD_S = 0.7
#: A layer in one graph of many takes this many times as long to trace and generate as a block alone: measured 0.6 to 1.24.
LAYER_OF_MANY = (0.6, 1.5)
#: Memory that the CUDA context and the libraries' workspaces take.
CONTEXT_BYTES = 1 << 30
#: Share of the device's memory that fragments of the allocator leave unused.
FRAGMENTS = 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScopeGain:
    """One compile scope of a step on one device."""

    scope: str
    work: Work
    """Of the whole step on one rank, optimizer included."""
    seconds: Mapping[str, Seconds]
    """By bound (:data:`HIDDEN`, :data:`SEEN`)."""
    gain: tuple[float, float]
    """Eager's time by this scope's, lowest and highest."""
    graphs: int
    compile_seconds: float
    """Estimated, on one core, with a cold cache."""
    compile_range: tuple[float, float]
    """The same at least and at most; where all layers were lowered, as by block, both are ``compile_seconds``."""
    break_even: tuple[int, int] | None
    """Steps after which the time saved is more than the time compiled; None where nothing is saved."""


def scopes(measured: Measured, device: Device, *, world_size: int = 1) -> tuple[ScopeGain, ...]:
    """Every scope that was counted, ``none`` first."""
    optimizer = _optimizer(measured, world_size)
    found: list[ScopeGain] = []
    for scope, eager_part, compiled_part, graphs, generated, added, kernels in _works(measured):
        times = {}
        for bound, (eager, compiled) in RATES.items():
            times[bound] = seconds(eager_part + optimizer, device, eager) + seconds(
                compiled_part, device, compiled
            )
        base = found[0].seconds if found else times
        ratios = [base[bound].total / times[bound].total for bound in RATES]
        counted = generated + kernels * KERNEL_BUILD_S
        low, high = (counted + added * share for share in LAYER_OF_MANY)
        found.append(
            ScopeGain(
                scope=scope,
                work=eager_part + compiled_part + optimizer,
                seconds=times,
                gain=(min(ratios), max(ratios)),
                graphs=graphs,
                compile_seconds=counted + added,
                compile_range=(low, high),
                break_even=_break_even((low, high), [base[b].total - times[b].total for b in RATES]),
            )
        )
    return tuple(found)


def _works(m: Measured) -> list[tuple[str, Work, Work, int, float, float, int]]:
    """(scope, work that stays eager, compiled work, graphs, seconds of generating code as counted and of layers that were
    added, kernels to build).
    """
    nothing = Work()
    loss_eager = nothing if m.loss is None else m.loss.eager
    blocks_eager = _total(m.blocks, compiled=False)
    blocks_compiled = _total(m.blocks, compiled=True)
    outside = m.body.eager + m.rest.eager
    block_graphs = sum(p.graphs for p in m.blocks)
    block_seconds = sum(p.compile_seconds for p in m.blocks)
    block_kernels = sum(_kernels(p) for p in m.blocks)
    rows = [
        ("none", blocks_eager + loss_eager + outside, nothing, 0, 0.0, 0.0, 0),
        ("block", loss_eager + outside, blocks_compiled, block_graphs, block_seconds, 0.0, block_kernels),
    ]
    if m.loss is not None and m.loss.compiled is not None:
        kernels = _kernels(m.loss)
        rows += [
            (
                "loss",
                blocks_eager + outside,
                m.loss.compiled,
                m.loss.graphs,
                m.loss.compile_seconds,
                0.0,
                kernels,
            ),
            (
                "block+loss",
                outside,
                blocks_compiled + m.loss.compiled,
                block_graphs + m.loss.graphs,
                block_seconds + m.loss.compile_seconds,
                0.0,
                block_kernels + kernels,
            ),
        ]
    for whole in m.wholes:
        work, more = _grown(m, whole)
        left = m.rest.eager + loss_eager if whole.scope == "model" else nothing
        beside = [one for one in work.launches if not one.product]
        # one graph of all layers: its code is generated for each, and equal kernels are built once
        rows.append((whole.scope, left, work, whole.graphs, whole.compile_seconds, more, len(beside)))
    return rows


def _total(parts: Sequence[Part], *, compiled: bool) -> Work:
    total = Work()
    for part in parts:
        one = part.compiled if compiled and part.compiled is not None else part.eager
        total = total + one.times(part.count)
    return total


def _kernels(part: Part) -> int:
    return 0 if part.compiled is None else sum(not one.product for one in part.compiled.launches)


def _grown(m: Measured, whole: WholeRegion) -> tuple[Work, float]:
    """The region with all layers, and the seconds of generating the code of those that were not lowered."""
    lowered = dict(whole.blocks)
    work, seconds_more = whole.compiled, 0.0
    for part in m.blocks:
        more = part.count - lowered.get(part.name, 0)
        if part.compiled is not None and more > 0:
            work = work + part.compiled.times(more)
            seconds_more += part.compile_seconds * more
    return work, seconds_more


def _optimizer(m: Measured, world_size: int) -> Work:
    """AdamW, fused: parameter, gradient and two moments are read, all but the gradient written."""
    return Work((Launch(name="optimizer", bytes=7 * m.trained_bytes // world_size, count=1),))


def _break_even(cost: tuple[float, float], saved: Sequence[float]) -> tuple[int, int] | None:
    low, high = min(saved), max(saved)
    if high <= 0 or cost[1] <= 0:
        return None
    return math.ceil(cost[0] / high), (math.ceil(cost[1] / low) if low > 0 else 10**9)


# ---- memory ----


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedFormula:
    """Bytes kept for backward as ``per_step + per_token * B*S + per_square * B*S*S``."""

    per_step: float
    per_token: float
    per_square: float

    def at(self, batch: int, length: int) -> int:
        """Bytes at a shape."""
        return round(self.per_step + self.per_token * batch * length + self.per_square * batch * length**2)


def formula(points: Sequence[SavedAt]) -> SavedFormula | None:
    """The formula through the points, None where they follow none; one point is taken as proportional to its
    tokens.
    """
    if len(points) == 1:
        one = points[0]
        return SavedFormula(per_step=0.0, per_token=one.bytes / (one.batch_size * one.length), per_square=0.0)
    if len(points) < 3:
        return None
    rows = [(1.0, p.batch_size * p.length, p.batch_size * p.length**2, p.bytes) for p in points[:3]]
    solved = _solve([[float(x) for x in row] for row in rows])
    if solved is None:
        return None
    found = SavedFormula(per_step=solved[0], per_token=solved[1], per_square=solved[2])
    exact = all(abs(found.at(p.batch_size, p.length) - p.bytes) <= 0.001 * max(p.bytes, 1) for p in points)
    return found if exact else None


def _solve(rows: list[list[float]]) -> list[float] | None:
    """Gauss with pivots, of three equations."""
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if rows[pivot][i] == 0:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (rows[i][n] - sum(rows[i][j] * found[j] for j in range(i + 1, n))) / rows[i][i]
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """One rank's memory at its peak, in bytes, by what takes it."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    """Blocks that FSDP2 has gathered whole at one time, and what is outside of blocks."""
    saved: int
    """Kept by forward for backward."""
    loss: int
    """Logits of one chunk and what cross entropy makes of them."""

    @property
    def peak(self) -> int:
        """All of it, with the context of the device."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.gathered
            + self.saved
            + self.loss
            + CONTEXT_BYTES
        )


def memory(
    m: Measured, *, scope: str = "none", batch_size: int, length: int, world_size: int = 1
) -> Memory | None:
    """Under a compile scope at a shape; None where what is saved follows no formula there, and for a scope that
    was not counted.
    """
    saved = _saved(m, scope, batch_size, length)
    if saved is None:
        return None
    logits = m.logits_elements * batch_size * length // (m.batch_size * m.length)
    whole = scope in ("model", "model+loss")
    fused = "loss" in scope and (whole or m.loss is not None and m.loss.compiled is not None)
    gathered = m.gathered_bytes if whole else 2 * m.block_bytes + m.root_bytes
    return Memory(
        parameters=m.parameter_bytes // world_size,
        gradients=m.trained_bytes // world_size,
        optimizer=2 * m.trained_bytes // world_size,
        gathered=gathered if world_size > 1 or m.always_sharded else 0,
        saved=saved,
        # logits and their gradient in the model's dtype; eager keeps the upcast, its log-softmax and the
        # gradient of both in float32 beside them
        loss=logits * (4 if fused else 16),
    )


def _saved(m: Measured, scope: str, batch_size: int, length: int) -> int | None:
    """Bytes that all parts together keep for backward."""
    eager: list[tuple[Part, int]] = [(m.rest, 1), *(() if m.loss is None else ((m.loss, 1),))]
    compiled: list[tuple[Part, int]] = []
    total = 0
    if scope in ("model", "model+loss"):
        region = next((one for one in m.wholes if one.scope == scope and one.saved), None)
        if region is None:
            return None
        squares = any(_squares(p) for p in (*m.blocks, m.body))
        own = _at(region.saved, batch_size, length, squares)
        if own is None:
            return None
        total += own
        lowered = dict(region.blocks)
        compiled = [(p, p.count - lowered.get(p.name, 0)) for p in m.blocks]
        if scope == "model+loss":
            eager = []
    else:
        eager.append((m.body, 1))
        (compiled if "block" in scope else eager).extend((p, p.count) for p in m.blocks)
        if "loss" in scope and m.loss is not None:
            eager.remove((m.loss, 1))
            compiled.append((m.loss, 1))
    for parts, is_compiled in ((eager, False), (compiled, True)):
        for part, count in parts:
            points = part.saved_compiled if is_compiled and part.saved_compiled else part.saved_eager
            bytes_ = _at(points, batch_size, length, _squares(part)) if count > 0 else 0
            if bytes_ is None:
                return None
            total += bytes_ * count
    return total


def _squares(part: Part) -> bool:
    """Whether what the part keeps eager grows with the square of the length, or follows no formula at all."""
    found = formula(part.saved_eager)
    return found is None or found.per_square > 1e-6


def _at(points: Sequence[SavedAt], batch_size: int, length: int, squares: bool) -> int | None:
    """Bytes at a shape by what was counted at others; None where these do not tell."""
    exact = next((p.bytes for p in points if (p.batch_size, p.length) == (batch_size, length)), None)
    if exact is not None:
        return exact
    same = [p for p in points if p.length == length]
    if len({p.batch_size for p in same}) > 1:
        one, two = same[0], next(p for p in same if p.batch_size != same[0].batch_size)
        row = (two.bytes - one.bytes) / (two.batch_size - one.batch_size)
        return round(one.bytes + row * (batch_size - one.batch_size))
    if (found := formula(points) if len(points) > 1 or not squares else None) is not None:
        return found.at(batch_size, length)
    if same:  # rows alike, whatever grows with the length
        return round(same[0].bytes * batch_size / same[0].batch_size)
    return None


def fits(peak: int, device: Device) -> bool:
    """Whether a peak leaves room for what the allocator loses."""
    return peak <= device.total_memory * (1 - FRAGMENTS)


def largest_batch(
    m: Measured, device: Device, *, scope: str, length: int | None = None, world_size: int = 1
) -> int | None:
    """Most rows of a length (default: the one that was counted) that fit; None where no formula holds, 0 where
    not even one fits.
    """
    return _largest(
        lambda rows: memory(
            m, scope=scope, batch_size=rows, length=length or m.length, world_size=world_size
        ),
        device,
        1 << 14,
    )


def longest_row(m: Measured, device: Device, *, scope: str, world_size: int = 1) -> int | None:
    """Most tokens of one row that fit; None and 0 as of :func:`largest_batch`."""
    return _largest(
        lambda length: memory(m, scope=scope, batch_size=1, length=length, world_size=world_size),
        device,
        1 << 24,
    )


def _largest(needs: Callable[[int], Memory | None], device: Device, most: int) -> int | None:
    """The largest number up to ``most`` for which there is room."""
    best, low, high = 0, 1, most
    while low <= high:
        middle = (low + high) // 2
        found = needs(middle)
        if found is None:
            return None
        if fits(found.peak, device):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


# ---- JSON ----


def to_dict(
    m: Measured,
    device: Device,
    *,
    world_size: int = 1,
    others: Sequence[Measured] = (),
    visits: Mapping[tuple[int, int], float] | None = None,
    one_row: bool = False,
) -> dict[str, Any]:
    """``payoff`` of a check, JSON-ready. ``others`` are the same step at other shapes, ``visits`` how often each
    (rows, length) is trained; without it each counts the same. With ``one_row`` the longest row that fits is told, not the
    most rows.
    """
    rows = scopes(m, device, world_size=world_size)
    return {
        "target": m.target,
        "device": device.name,
        "batch_size": m.batch_size,
        "length": m.length,
        "ac": m.ac,
        "dtype": m.dtype,
        "device_bytes": device.total_memory,
        "world_size": world_size,
        "assumptions": _assumptions(),
        "scopes": [
            {
                "scope": row.scope,
                **summary(row.work),
                "seconds": {bound: _seconds_dict(row.seconds[bound]) for bound in RATES},
                "gain": list(row.gain),
                "graphs": row.graphs,
                "compile_seconds": round(row.compile_seconds, 1),
                "compile_seconds_range": [round(seconds, 1) for seconds in row.compile_range],
                "break_even_steps": None if row.break_even is None else list(row.break_even),
            }
            for row in rows
        ],
        "blocks": [
            {
                "kind": p.name,
                "count": p.count,
                "eager": summary(p.eager),
                "compiled": None if p.compiled is None else summary(p.compiled),
                "saved_eager": _formula_dict(p.saved_eager),
                "saved_compiled": _formula_dict(p.saved_compiled),
            }
            for p in (*m.blocks, *(() if m.loss is None else (m.loss,)))
        ],
        "memory": {
            name: _memory_dict(m, device, scope=scope, world_size=world_size, one_row=one_row)
            for name, scope in (("eager", "none"), ("compiled", "block+loss"))
        },
        "memory_by_scope": [
            {"scope": row.scope, **found}
            for row in rows
            if (found := _memory_dict(m, device, scope=row.scope, world_size=world_size, one_row=one_row))
            is not None
        ],
        "by_shape": _by_shape([m, *others], device, world_size, visits or {}) if others else [],
        "over_all_shapes": _over_all([m, *others], device, world_size, visits or {}) if others else [],
        "refused": [{"scope": scope, "why": why} for scope, why in m.refused],
    }


def of_script(
    eager: Work,
    left: Work,
    compiled: Work,
    device: Device,
    target: str,
    *,
    graphs: int,
    compile_seconds: float,
    world_size: int,
    memory: Mapping[str, StepMemory],
    batches: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    """``payoff`` of a training command: its step without torch.compile, and as the command compiles it (``left`` is
    what stays eager). ``memory`` is by scope, ``none`` and ``script``; ``batches`` are the (rows, length) of the step.
    """
    kernels = len([one for one in compiled.launches if not one.product])
    times = {
        "none": {bound: seconds(eager, device, rates[0]) for bound, rates in RATES.items()},
        "script": {
            bound: seconds(left, device, rates[0]) + seconds(compiled, device, rates[1])
            for bound, rates in RATES.items()
        },
    }
    saved = [times["none"][bound].total - times["script"][bound].total for bound in RATES]
    ratios = [times["none"][bound].total / times["script"][bound].total for bound in RATES]
    cost = compile_seconds + kernels * KERNEL_BUILD_S
    rows = (
        ("none", eager, (1.0, 1.0), 0, 0.0, None),
        (
            "script",
            left + compiled,
            (min(ratios), max(ratios)),
            graphs,
            cost,
            _break_even((cost, cost), saved),
        ),
    )
    return {
        **memory_of_script(memory, device, target, world_size=world_size, batches=batches),
        "assumptions": [*_assumptions(), *_MEMORY_OF_SCRIPT],
        "scopes": [
            {
                "scope": scope,
                **summary(work),
                "seconds": {bound: _seconds_dict(times[scope][bound]) for bound in RATES},
                "gain": list(gain),
                "graphs": count,
                "compile_seconds": round(paid, 1),
                "compile_seconds_range": [round(paid, 1), round(paid, 1)],
                "break_even_steps": None if pays is None else list(pays),
            }
            for scope, work, gain, count, paid, pays in rows
        ],
    }


def memory_of_script(
    memory: Mapping[str, StepMemory],
    device: Device,
    target: str,
    *,
    world_size: int,
    batches: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """:func:`of_script` without its scopes: whether the command fits."""
    names = {"none": "eager", "script": "compiled"}
    return {
        "target": target,
        "device": device.name,
        "batch_size": None,
        "length": None,
        "ac": "none",
        "dtype": None,
        "device_bytes": device.total_memory,
        "world_size": world_size,
        "batches": [list(batch) for batch in batches],
        "assumptions": [*_MEMORY_OF_SCRIPT],
        "scopes": [],
        "blocks": [],
        "memory": {names[scope]: _step_memory_dict(found, device) for scope, found in memory.items()},
        "memory_by_scope": [
            {"scope": scope, **_step_memory_dict(found, device)} for scope, found in memory.items()
        ],
        "refused": [],
    }


def _step_memory_dict(found: StepMemory, device: Device) -> dict[str, Any]:
    peak = found.total + CONTEXT_BYTES
    return {
        **dataclasses.asdict(found),
        "peak": peak,
        "fits": fits(peak, device),
        "largest_batch": None,
        "longest_row": None,
    }


_MEMORY_OF_SCRIPT = (
    "memory: what the tensors of the step held when they held most, and inside of graphs Inductor's plan of buffers; "
    "saved is what the forward made, transient what the backward, the update and graphs made",
    "the command decides its batch: how many more rows would fit is not told; change the batch there and check again",
)


def _seconds_dict(found: Seconds) -> dict[str, float]:
    return {
        "step": found.total,
        "device": found.device,
        "products": found.products,
        "host": found.host,
    }


def _by_shape(
    counted: Sequence[Measured],
    device: Device,
    world_size: int,
    visits: Mapping[tuple[int, int], float],
) -> list[dict[str, Any]]:
    """Gain and the largest batch at each shape, shortest first."""
    found = []
    for m in sorted(counted, key=lambda one: (one.length, one.batch_size)):
        rows = scopes(m, device, world_size=world_size)
        found.append(
            {
                "batch_size": m.batch_size,
                "length": m.length,
                "visits": visits.get((m.batch_size, m.length), 1),
                "scopes": [
                    {
                        "scope": row.scope,
                        "seconds": {bound: row.seconds[bound].total for bound in RATES},
                        "gain": list(row.gain),
                        "largest_batch": largest_batch(m, device, scope=row.scope, world_size=world_size),
                    }
                    for row in rows
                ],
            }
        )
    return found


def _over_all(
    counted: Sequence[Measured],
    device: Device,
    world_size: int,
    visits: Mapping[tuple[int, int], float],
) -> list[dict[str, Any]]:
    """Gain of each scope over all shapes together, each as often as it is trained: eager's time by the scope's."""
    tables = [
        (
            visits.get((m.batch_size, m.length), 1),
            {row.scope: row for row in scopes(m, device, world_size=world_size)},
        )
        for m in counted
    ]
    found = []
    for scope in tables[0][1]:
        if scope == "none" or any(scope not in table for _, table in tables):
            continue  # a region over all blocks is counted at the largest shape alone
        ratios = [
            sum(often * table["none"].seconds[bound].total for often, table in tables)
            / sum(often * table[scope].seconds[bound].total for often, table in tables)
            for bound in RATES
        ]
        found.append({"scope": scope, "gain": [min(ratios), max(ratios)]})
    return found


def _memory_dict(
    m: Measured, device: Device, *, scope: str, world_size: int, one_row: bool
) -> dict[str, Any] | None:
    found = memory(m, scope=scope, batch_size=m.batch_size, length=m.length, world_size=world_size)
    if found is None:
        return None
    return {
        **dataclasses.asdict(found),
        "peak": found.peak,
        "fits": fits(found.peak, device),
        "largest_batch": None if one_row else largest_batch(m, device, scope=scope, world_size=world_size),
        "longest_row": longest_row(m, device, scope=scope, world_size=world_size) if one_row else None,
    }


def _formula_dict(points: Sequence[SavedAt]) -> dict[str, Any] | None:
    if not points:
        return None
    found = formula(points)
    return {
        "points": [dataclasses.asdict(p) for p in points],
        "formula": None if found is None else dataclasses.asdict(found),
    }


def _assumptions() -> list[str]:
    hidden, seen = RATES[HIDDEN][0], RATES[SEEN]
    return [
        f"lowest gain: products at {hidden.products:.0%} of the tensor cores' peak, all else at the memory's bandwidth, launches hidden",
        f"highest gain: products at {seen[0].products:.0%}, all else at {seen[0].bandwidth:.0%} of the bandwidth, and the host needs "
        f"{seen[0].host_us:.0f} us for an operator of eager, {seen[1].host_us:.0f} us for a kernel of a graph",
        "communication is hidden, and the optimizer is one pass over parameters, gradients and moments",
        "eager is the same recipe without torch.compile: each operator of ATen is one launch",
        f"compile time: generating code as it took here, in seconds of one core, and {KERNEL_BUILD_S} s for each kernel that is built, "
        f"with a cold cache; of model and model+loss few layers were lowered, each further one is taken for {LAYER_OF_MANY[0]} to "
        f"{LAYER_OF_MANY[1]} times a block's own seconds",
    ]
