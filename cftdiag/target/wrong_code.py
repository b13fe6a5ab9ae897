"""Looks for the patterns of known wrong code in a lowered graph and the code generated for it."""

from __future__ import annotations

import re
from typing import Any

import torch

from cftdiag.diagnose.wrong_code import MIX_ORDER_VIEWS, WrongCode
from cftdiag.findings import Where
from cftdiag.target.collect import lines_of
from cftdiag.torch_private import dynamo
from cftdiag.torch_private.inductor import NonOwningLayout


def find(graph: Any, text: str) -> list[WrongCode]:
    """What of the advisories is in ``graph`` (a ``GraphLowering``) and its generated ``text``."""
    lost = _rebound_views(graph, text)
    if not lost:
        return []
    origins = [n for name in lost for n in graph.scheduler.name_to_buf[name].node.get_origins()]
    lines = lines_of(n for n in origins if isinstance(n, torch.fx.Node))
    return [
        WrongCode(
            issue=MIX_ORDER_VIEWS.issue,
            compile_id=dynamo.current_compile_id(),
            backward=bool(graph.is_backward),
            buffers=lost,
            line=lines[0] if lines else Where(),
        )
    ]


def _rebound_views(graph: Any, text: str) -> tuple[str, ...]:
    """Buffers that are views into a shared one and that the code binds to a tensor of their own instead: what
    they hold never reaches the shared buffer.
    """
    views = [
        name
        for name, buffer in graph.scheduler.name_to_buf.items()
        if isinstance(getattr(buffer.node, "layout", None), NonOwningLayout)
    ]
    return tuple(name for name in views if re.search(rf"^\s*{name} = workspace_\d+\[", text, re.M))
