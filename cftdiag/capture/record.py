"""One structured-trace record, and the names of the records that matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

#: Keys that torch adds beside the record's own name.
_CONTEXT = frozenset(
    "rank compiled_autograd_id frame_id frame_compile_id attempt severity timestamp pathname thread subgraph_name has_payload stack".split()
)

#: Records that carry a graph or generated code; their payloads are only kept on request.
GRAPHS = frozenset(
    "dynamo_output_graph inductor_output_code aot_forward_graph aot_backward_graph aot_joint_graph inductor_post_grad_graph".split()
)
#: Records that become events or parts of them; all others are dropped by their name, before anything is read
#: from them.
WANTED = GRAPHS | frozenset(
    "artifact dynamo_start create_symbol create_unbacked_symbol symbolic_shape_specialization compilation_metrics bwd_compilation_metrics".split()
)
#: Records with stacks, in which torch writes a number for each file's name.
INTERNED = frozenset({"dynamo_start", "create_symbol", "symbolic_shape_specialization"})
#: Artifact -> (cache, outcome).
CACHE_ARTIFACTS = {
    f"{prefix}_{outcome}": (cache, outcome)
    for prefix, cache in (("aotautograd_cache", "aotautograd"), ("fx_graph_cache", "fx_graph"))
    for outcome in ("hit", "miss", "bypass")
}


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """``name`` is the record's own (``artifact``, ``dynamo_start``), ``data`` what torch put under it,
    ``time`` Unix seconds.
    """

    name: str
    data: Any
    payload: str | None
    compile_id: str | None
    attempt: int
    rank: int | None
    time: float

    @classmethod
    def of(cls, metadata: Mapping[str, Any], payload: str | None, time: float) -> Record:
        """Read one metadata dict; its first key that is not context is the record's name."""
        name = next((k for k in metadata if k not in _CONTEXT), "")
        return cls(
            name,
            metadata.get(name),
            payload,
            compile_id(metadata),
            metadata.get("attempt") or 0,
            metadata.get("rank"),
            time,
        )

    @property
    def artifact(self) -> str | None:
        """The artifact's name for an ``artifact`` record."""
        return self.data.get("name") if self.name == "artifact" and isinstance(self.data, Mapping) else None


def compile_id(metadata: Mapping[str, Any]) -> str | None:
    """``frame/compile`` as torch prints it, ``!n/frame/compile`` under compiled autograd."""
    frame, number, autograd = (
        metadata.get(k) for k in ("frame_id", "frame_compile_id", "compiled_autograd_id")
    )
    if frame is None:
        return None if autograd is None else f"!{autograd}"
    return f"{frame}/{number}" if autograd is None else f"!{autograd}/{frame}/{number}"


def named(data: Any, names: Mapping[int, str]) -> Any:
    """The same data with the numbers of interned file names replaced."""
    if isinstance(data, list):
        return [named(item, names) for item in data]
    if isinstance(data, dict):
        return {
            k: names.get(v, v) if k == "filename" and isinstance(v, int) else named(v, names)
            for k, v in data.items()
        }
    return data
