"""AOTAutograd, fake tensors, symbolic sizes and dispatch modes: what a backend of our own is made of."""

from __future__ import annotations

from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_LOST = "compiled regions cannot be fast-forwarded: weightless models cannot be checked"
_SHAPES = "torch.fx.experimental.symbolic_shapes"
_FAKE = "torch._subclasses.fake_tensor"

NAMES = (
    Name("torch._dynamo.backends.common:aot_autograd", "joint", _LOST),
    Name("functorch.compile:min_cut_rematerialization_partition", "joint", _LOST),
    Name(
        "torch._functorch:config",
        "joint",
        "the memory budget of the partitioner is not known",
        alias="aot_config",
    ),
    Name("torch.utils._python_dispatch:TorchDispatchMode", "trace", _LOST),
    Name("torch.utils._python_dispatch:_disable_current_modes", "trace", _LOST),
    Name(f"{_FAKE}:FakeTensorMode", "trace", _LOST),
    Name(f"{_FAKE}:DataDependentOutputException", "trace", _LOST),
    Name(f"{_FAKE}:DynamicOutputShapeException", "trace", _LOST),
    Name(f"{_SHAPES}:ShapeEnv", "joint", _LOST),
    Name(f"{_SHAPES}:resolve_unbacked_bindings", "joint", _LOST, leading=("shape_env", "bindings")),
    Name("torch.utils._sympy.solve:try_solve", "joint", _LOST, leading=("expr", "thing")),
    Name("torch.utils._pytree:key_get", "joint", _LOST, leading=("obj", "kp")),
    Name("torch.utils._pytree:tree_leaves", "trace", _LOST),
    Name("torch.utils._pytree:tree_map", "trace", _LOST),
    Name("torch.utils._pytree:tree_map_only", "trace", _LOST),
    Name("torch:_C.DisableTorchFunction", "trace", _LOST),
    Name("torch:_ops.OpOverload", "trace", _LOST),
    Name("torch:_ops.HigherOrderOperator", "trace", _LOST),
    Name("torch:ops.aten._local_scalar_dense", "trace", _LOST, alias="local_scalar_dense"),
    Name("torch:ops.aten._unique2", "trace", _LOST),
    Name("torch:ops.aten._amp_foreach_non_finite_check_and_unscale_", "trace", _LOST, alias="amp_unscale"),
)
_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)


def boxed_call(function: Any) -> bool:
    """True for a function in AOTAutograd's boxed calling convention: it takes one list, and empties it."""
    return bool(getattr(function, "_boxed_call", False))


def mark_boxed(function: Any) -> None:
    """Declare a function to be in the boxed calling convention."""
    function._boxed_call = True  # an attribute of the function itself: wrappers copy it from there
