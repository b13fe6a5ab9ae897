"""Addresses that the causes' pages stand on."""

from __future__ import annotations

_GUIDE = "https://docs.pytorch.org/docs/main/user_guide/torch_compiler/"

BREAKS = _GUIDE + "compile/programming_model.fullgraph_true.html"
COMMON_BREAKS = _GUIDE + "compile/programming_model.common_graph_breaks.html"
DISABLE = _GUIDE + "compile/programming_model.compiler_disable.html"
CUSTOM_OPS = _GUIDE + "compile/programming_model.custom_ops.html"
RECOMPILATION = _GUIDE + "compile/programming_model.recompilation.html"
DYNAMIC_SHAPES = _GUIDE + "torch.compiler_dynamic_shapes.html"
ZERO_ONE = _GUIDE + "compile/dynamic_shapes_zero_one_specialization.html"
MODULES = _GUIDE + "torch.compiler_nn_module.html"
CHECKPOINT = "https://docs.pytorch.org/docs/main/checkpoint.html"


def gb(number: str) -> str:
    """torch's own page of one kind of graph break."""
    return f"https://meta-pytorch.github.io/compile-graph-break-site/gb/gb{number}.html"


def issue(repository: str, number: int) -> str:
    """A public issue or pull request."""
    return f"https://github.com/{repository}/issues/{number}"


def torch_issue(number: int) -> str:
    """An issue of PyTorch."""
    return issue("pytorch/pytorch", number)
