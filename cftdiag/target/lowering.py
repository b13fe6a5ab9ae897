"""torch.compile backends of depth ``codegen``: Inductor lowers each graph for a target, the graph itself runs
fast-forwarded on the CPU.

The graph that runs is the one that AOTAutograd hands to Inductor's inner compiler, copied before Inductor's
own passes rewrite it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from cftdiag.diagnose.wrong_code import WrongCode
from cftdiag.fastforward import Graph, boxed, copied
from cftdiag.target import cpu, cuda, native, patches, rng, sdpa, wrong_code
from cftdiag.target.collect import Collector, Lowered
from cftdiag.target.devices import device
from cftdiag.target.errors import TargetUnavailable
from cftdiag.target.retarget import CpuGraph, to_cuda
from cftdiag.torch_private.inductor import compile_fx, compile_fx_inner
from cftdiag.torch_private.tracing import DisableTorchFunction

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def backend(
    name: str,
    *,
    inductor_config: Mapping[str, Any] | None = None,
    on_graph: Callable[[Lowered], None] | None = None,
    on_wrong_code: Callable[[WrongCode], None] | None = None,
    keep: bool = False,
) -> Backend:
    """A torch.compile backend that lowers for the target ``name`` and computes (almost) nothing.

    ``inductor_config`` holds names of ``torch._inductor.config``; what only a device can decide (autotuning,
    padding of products, caches) is left out whatever it says. ``on_graph`` is called with a :class:`Lowered`
    for every graph, forward and backward, ``on_wrong_code``
    for every one that a known bug of torch spoils. ``keep`` leaves each on the graph that runs in its place
    (:attr:`Graph.lowered`). Raises ``ValueError`` for an unknown target and
    :class:`~cftdiag.target.errors.TargetUnavailable` where this torch or machine lacks something.
    """
    spec = device(name)
    check_available(name)
    latest: list[Lowered] = []

    def lowered(found: Lowered) -> None:
        latest[:] = [found]
        if on_graph is not None:
            on_graph(found)

    wanted = on_graph is not None or keep
    collector = Collector(name, lowered) if wanted else None
    active = False

    def on_code(graph: Any, text: str) -> None:
        if collector is not None:
            collector.on_code(graph, text)
        if on_wrong_code is not None:
            for found in wrong_code.find(graph, text):
                on_wrong_code(found)

    @contextlib.contextmanager
    def lowering() -> Iterator[None]:
        nonlocal active
        if active:  # a forward is lowered inside the backend call, a backward later, from autograd
            yield
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                cpu.lowering(on_code, inductor_config)
                if spec is None
                else cuda.lowering(name, on_code, inductor_config)
            )
            if collector:
                stack.enter_context(collector.watching())
            active = True
            stack.callback(deactivate)
            yield

    def deactivate() -> None:
        nonlocal active
        active = False

    graph_type: type[Graph] = Graph if spec is None else CpuGraph

    def inner(gm: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        graph = graph_type(copied(gm), "bwd" if kwargs.get("is_backward") else "fwd")
        # A backward is lowered from autograd, under the function modes of whoever called it: one that maps devices
        # would put what Inductor makes for the target on the CPU.
        with lowering(), DisableTorchFunction():
            compile_fx_inner(gm, inputs, **kwargs)
        graph.lowered = latest.pop() if latest else None
        return boxed(graph)

    def compile_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with lowering():
            if spec is None:
                return compile_fx(gm, inputs, inner_compile=inner)
            compiled = compile_fx(*to_cuda(gm, inputs), inner_compile=inner)

        @functools.wraps(compiled)
        def run(*args: Any) -> Any:
            with rng.available():
                return compiled(*args)

        return run

    return compile_graph


def check_available(name: str) -> None:
    """Raise :class:`TargetUnavailable` when a point that lowering for ``name`` relies on is missing;
    ``ValueError`` for an unknown target.
    """
    for _, found, detail in probe(name):
        if not found:
            raise TargetUnavailable(name, detail)


def probe(name: str) -> list[tuple[str, bool, str]]:
    """(patch point, found, detail) of everything that lowering for ``name`` relies on; ``ValueError`` for an
    unknown target.
    """
    spec = device(name)
    if spec is None:
        return patches.probe(cpu.patches())
    missing = cuda.why_not()
    rows = [("triton and the device stub", missing is None, missing or f"stub in {native.cache_folder()}")]
    return rows + patches.probe(cuda.patches(spec))


def assumptions(name: str) -> list[str]:
    """What stays undetermined for the target ``name``, and what was assumed in its place so far in this
    process.
    """
    spec = device(name)
    if spec is None:
        return [
            "the instruction set is read from this machine's CPU flags; another CPU can have other vector widths and other guards",
            "C++ code is generated and not built: compile times and timings are unknown",
        ]
    return [
        f"predicted for {spec.name}: no GPU took part",
        "autotuning is not run: which of a kernel's configurations wins is unknown",
        "max-autotune templates, padding of matrix products (shape_padding) and the C++ wrapper are left out: they need timings on the device",
        "the model is traced as a program on the CPU: a test of a tensor's device inside a block takes the CPU's branch",
        *sdpa.assumed(),
    ]
