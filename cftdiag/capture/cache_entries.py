"""What Dynamo has cached, and the frames that it serves: the forecast asks both without running the model.

``sys.setprofile`` sees the frame of a compiled region on a hit too, where Dynamo itself calls no Python; it
is off while torch compiles, which it would slow down threefold.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from cftdiag import guards
from cftdiag.capture import cached_guards
from cftdiag.events import Guard
from cftdiag.torch_private import callbacks, compile_frame, dynamo, guard_tree

#: A whole model's tree of guards may hold tens of thousands of managers; reading stops there.
_MANAGERS = 50_000


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One cached graph of a code object."""

    compile_id: str
    _entry: Any

    @property
    def valid(self) -> bool:
        """False for one that Dynamo has thrown away, whose guards are gone."""
        return guard_tree.invalidated(self._entry) is None

    def matches(self, f_locals: dict[str, Any]) -> bool:
        """True when the guards hold for these locals, under the global state (grad mode, autocast) of now."""
        return bool(self._entry.guard_manager.check(f_locals))

    def failure(self, f_locals: dict[str, Any]) -> Guard | None:
        """The first guard that fails."""
        return cached_guards.first_failure(self._entry, f_locals)

    def texts(self) -> tuple[str, ...]:
        """All guards as torch prints them, without comments; each once."""
        root = self._entry.guard_manager.root
        found: dict[str, None] = {}
        todo = [root]
        for _ in range(_MANAGERS):
            if not todo:
                break
            node = todo.pop()
            for leaf in node.get_leaf_guards():
                found.update(dict.fromkeys(leaf.verbose_code_parts()))
            todo += node.get_child_managers()
        for leaf in root.get_epilogue_lambda_guards():
            found.update(dict.fromkeys(leaf.verbose_code_parts()))
        return tuple(dict.fromkeys(guards.comment(text)[0] for text in found))

    def value(self, source: str, f_locals: Mapping[str, Any]) -> Any:
        """Value of a source that a guard names (``L['self'].limit``), or None where the locals have none."""
        reached, value = cached_guards._value(source, guard_tree.scope_of(self._entry, f_locals))
        return value if reached else None


def entries(code: CodeType) -> tuple[Entry, ...]:
    """Cached graphs of a code object in the order in which they were compiled."""
    found = [Entry(str(e.compile_id), e) for e in guard_tree.cached(code)]
    return tuple(sorted(found, key=lambda entry: _number(entry.compile_id)))


def _number(compile_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in compile_id.lstrip("!").split("/") if part.isdigit())


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call of a compiled region: its code as Dynamo knows it, and the frame's locals at the start."""

    code: CodeType
    f_locals: dict[str, Any]


class Calls:
    """Context manager: hands every call of a region that Dynamo has compiled to ``on_call``.

    A region becomes known, and is added to ``codes``, when it is first compiled inside the context. With
    ``outermost`` a call inside another known call is left out: run eagerly, a region calls what compiled it
    would have inlined.
    """

    def __init__(
        self,
        on_call: Callable[[Call], None],
        codes: dict[tuple[str, int, str], CodeType],
        *,
        outermost: bool = False,
    ) -> None:
        def hand_over(code: CodeType, frame: FrameType) -> None:
            on_call(Call(code, dict(frame.f_locals)))

        # While a compiled region runs, Dynamo looks at every Python frame, ours too.
        self._on_call = dynamo.disable(hand_over)
        self.codes, self._outermost = codes, outermost
        self._inside = 0

    def __enter__(self) -> Calls:
        callbacks.register(self._compiling, self._compiled)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        callbacks.unregister(self._compiling, self._compiled)

    def _compiling(self, args: Any) -> None:
        sys.setprofile(None)
        compiling = compile_frame.innermost_compile(sys._getframe(1))
        if compiling is not None and compiling.code is not None:
            self.codes[_key(compiling.code)] = compiling.code

    def _compiled(self, args: Any) -> None:
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "call" and event != "return":
            return
        code = self.codes.get(_key(frame.f_code))
        if code is None:
            return
        if event == "return":
            self._inside -= 1
            return
        if not self._inside or not self._outermost:
            self._on_call(code, frame)
        self._inside += 1


def _key(code: CodeType) -> tuple[str, int, str]:
    # What Dynamo runs is a rewritten copy of the code: another object of the same place and name.
    return code.co_filename, code.co_firstlineno, code.co_name
