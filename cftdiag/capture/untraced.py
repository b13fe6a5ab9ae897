"""Keeps Dynamo out of our own frames.

After a graph break Dynamo looks at every Python frame that the rest of the user's function calls. Some of
these are ours: what stands in for ``Tensor.tolist``, a wrapper of a compiled call, a dispatch mode. Compiled,
they would add graphs, breaks and findings that the program does not have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cftdiag.torch_private.dynamo import imported

#: Packages whose frames run around the user's program. The recipe is left out: a run compiles its loss.
_OURS = (
    "cftdiag.capture",
    "cftdiag.fastforward",
    "cftdiag.monitor",
    "cftdiag.passes",
    "cftdiag.forecast",
    "cftdiag.rehearse",
    "cftdiag.torch_private",
)
_known: set[str] = set()


def leave_our_frames_alone() -> None:
    """Tell Dynamo not to compile any function of ours by itself; cheap when nothing was imported since. Before
    Dynamo is imported there is nobody to tell, and a script that does without it is not made to import it.

    A frame is skipped, not a call: where tracing meets one of our functions inside the user's graph it
    inlines it, as it would without this.
    """
    if not imported():
        return
    new = [name for name in sys.modules if name not in _known and name.startswith(_OURS)]
    if not new:
        return
    from cftdiag.torch_private.dynamo import skip_code

    for name in new:
        _known.add(name)
        for code in codes(sys.modules[name]):
            skip_code(code)


def codes(module: ModuleType) -> list[CodeType]:
    """Code objects of the functions and methods that a module defines, nested ones included.

    A decorator's own code is not among them: everybody's context managers share that of ``contextlib``.
    """
    found: dict[int, CodeType] = {}  # by identity: two equal lambdas are two frames
    todo: list[Any] = [v for v in vars(module).values() if getattr(v, "__module__", None) == module.__name__]
    while todo:
        value = todo.pop()
        if not isinstance(value, CodeType):
            todo += _inside(value)
        elif id(value) not in found and value.co_filename in (getattr(module, "__file__", None), "<string>"):
            found[id(value)] = value
            todo += value.co_consts
    return list(found.values())


def _inside(value: Any) -> Iterable[Any]:
    """What holds code in a function, a method or a class."""
    match value:
        case FunctionType():
            return value.__code__, getattr(value, "__wrapped__", None)
        case classmethod() | staticmethod():
            return (value.__func__,)
        case property():
            return value.fget, value.fset
        case type():
            return vars(value).values()
    return ()
