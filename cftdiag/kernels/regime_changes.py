"""Which kernels change between two regimes, that is between two compiles of the same kind of block.
Torch-free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.target.records import Kernel, Lowered


def body(source: str) -> str:
    """The Triton function (or C++ text) without its name, so that two compiles can be compared."""
    start = source.find("@triton.jit")
    if start < 0:
        return source
    return re.sub(r"def \w+\(", "def kernel(", source[start:], count=1)


def calls(code: str) -> str:
    """What an output code does with its kernels: buffers, launches and library calls in order, without the
    kernels' texts and the benchmark.
    """
    found = re.search(
        r"^(?:class Runner|def call\().*?(?=^(?:runner = |def benchmark_compiled_module|if __name__)|\Z)",
        code,
        flags=re.M | re.S,
    )
    return found[0] if found else code


def _key(kernel: Kernel) -> tuple[str, ...]:
    return (kernel.category, *kernel.aten)


def changes(before: Lowered, after: Lowered) -> dict[str, Any]:
    """JSON-ready: kernels with the same text, those that do the same operators with another text, and those
    that only one of the two has.
    """
    left, right = list(before.kernels), list(after.kernels)
    same = Counter(body(k.source) for k in left) & Counter(body(k.source) for k in right)
    left, right = _without(left, same), _without(right, same)
    changed = []
    for kernel in list(left):
        twin = next((k for k in right if _key(k) == _key(kernel)), None)
        if twin is not None:
            left.remove(kernel)
            right.remove(twin)
            changed.append({"before": kernel.name, "after": twin.name})
    return {
        "backward": before.backward,
        "from": _sizes(before),
        "to": _sizes(after),
        "same": same.total(),
        "changed": changed,
        "only_before": [k.name for k in left],
        "only_after": [k.name for k in right],
    }


def _without(kernels: Sequence[Kernel], same: Mapping[str, int]) -> list[Kernel]:
    left = Counter(same)
    rest = []
    for kernel in kernels:
        text = body(kernel.source)
        if left[text]:
            left[text] -= 1
        else:
            rest.append(kernel)
    return rest


def _sizes(graph: Lowered) -> dict[str, Any]:
    return {"compile_id": graph.compile_id, "sizes": dict(graph.sizes)}
