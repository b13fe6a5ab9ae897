"""A cache miss with what surrounds it: which block missed, which compiled the entry, what either had run and
been given before.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cftdiag.conditions import MISSING, Condition
from cftdiag.details import Argument, TensorArgument
from cftdiag.diagnose.engine.context import Context
from cftdiag.events import RESUME, Code, Event, Reason


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """One recompile or limit hit, read against its closest entry."""

    event: Event
    guard: Condition
    """What the guard of the closest entry tests."""
    entry: str | None
    entry_block: str | None
    context: Context
    history: History

    @property
    def block(self) -> str | None:
        """The block that missed."""
        return self.event.block

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """Arguments of the call that missed."""
        return self.event.missed.arguments

    @property
    def entry_arguments(self) -> Mapping[str, Argument]:
        """Arguments of the call that compiled the closest entry."""
        made = self.history.compiles.get(self.entry or "")
        return made.compiled.arguments if made is not None else {}

    @property
    def added(self) -> str | None:
        """``file:line in function`` of what added the guard, where torch says."""
        guard = self.event.guard
        return guard.added if guard is not None else None

    @property
    def owner(self) -> str | None:
        """What holds the guarded attribute: ``class``, ``module`` or ``object``; None where it was not seen."""
        guard = self.event.guard
        return guard.owner if guard is not None else None

    @property
    def resumed(self) -> bool:
        """True in the part of a function that follows a graph break."""
        return self.event.code is not None and RESUME in self.event.code.qualname

    @property
    def dynamic(self) -> bool | None:
        """``dynamic`` as the block was compiled with; None is torch's automatic choice."""
        value = self.context.compile_kwargs.get("dynamic")
        return value if isinstance(value, bool) else None

    def on_module(self) -> bool:
        """True when the guard's root is the block itself, not one of its arguments."""
        name = self.event.missed.self_name
        if name is not None:
            return self.guard.root == name
        if self.guard.root in ("", "G") or self.guard.root in self.arguments:
            return False
        if self.guard.root == "self" or self.guard.path.startswith("._modules["):
            return True
        if self.guard.kind == "type" and not self.guard.path:
            return str(self.guard.expected).rpartition(".")[2] in {b.cls for b in self.context.blocks}
        if any(re.search(r"\bself\.", f.code or "") for f in self.event.stack):
            return False  # the module is called self here, so another root is an argument
        return bool(self.guard.path) and not self.guard.path.startswith("[") and not self.resumed

    def argument(self) -> bool:
        """True when the guard's root is an argument of the call."""
        return self.guard.root not in ("", "G") and not self.on_module()

    def modules_differ(self) -> bool:
        """True when the block that missed differs from the one that compiled the entry in attributes of its
        own: it is of another kind.
        """
        name = self.event.missed.self_name or "self"
        changed = self.event.missed.changed
        return self.block != self.entry_block and any(
            source.startswith(f"L['{name}'].") for source in changed
        )

    def in_time(self) -> bool:
        """True when the guarded value changed in time for one block, False when it only differs between
        blocks.
        """
        return self.history.in_time(self)

    def shape_of(
        self, source: str, arguments: Mapping[str, Argument] | None = None
    ) -> tuple[int | str, ...] | None:
        """Shape of a tensor argument by its source, where known."""
        found = (self.arguments if arguments is None else arguments).get(source)
        return found.shape if isinstance(found, TensorArgument) else None

    def size(self, source: str, dim: int, *, of_entry: bool = False) -> int | None:
        """One dimension of an argument, of this call or of the call that compiled the entry."""
        shape = self.shape_of(source, self.entry_arguments if of_entry else None)
        size = shape[dim] if shape is not None and dim < len(shape) else None
        return size if isinstance(size, int) else None


class History:
    """All misses of a run, so that one can be judged in the light of the others."""

    def __init__(self, events: Sequence[Event], context: Context) -> None:
        self.context = context
        self.compiles = {
            e.compile_id: e for e in events if e.kind == "compile" and e.region != "backward" and e.compile_id
        }
        self.parameters = _parameters(self.compiles.values())
        self._entered: dict[str, Code] = {}
        """Block -> the code of its first compile."""
        for event in events:
            if event.kind == "compile" and event.region != "backward" and event.block and event.code:
                self._entered.setdefault(event.block, event.code)
        self._values: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._repeated: set[tuple[str, str]] = set()
        self.misses = [self._miss(e) for e in events if e.kind in ("recompile", "limit_hit")]
        for miss in self.misses:
            self._note(miss)

    def _miss(self, event: Event) -> Miss:
        reason = closest(event)
        known = event.guard or (reason.guard if reason else None)
        guard = known.condition if known is not None else Condition(text="")
        mapping = event.missed.parameters
        for written, name in mapping.items():
            if guard.source == written or guard.source.startswith((f"{written}.", f"{written}[")):
                guard = guard.renamed(written, name)
        entry = reason.entry if reason else None
        owner = reason.block if reason else None
        if owner is None and entry in self.compiles:
            owner = self.compiles[entry].block
        return Miss(
            event=event, guard=guard, entry=entry, entry_block=owner, context=self.context, history=self
        )

    def _note(self, miss: Miss) -> None:
        key = self._key(miss)
        expected, actual = _told(miss.guard)
        if expected is not None and miss.entry_block:
            self._values[key][miss.entry_block].add(expected)
        if actual is not None and miss.block:
            self._values[key][miss.block].add(actual)
        if miss.block is not None and miss.block == miss.entry_block:
            self._repeated.add(key)
        if miss.entry in self.context.ran.get(miss.block or "", ()):
            self._repeated.add(key)

    def sharing(self, miss: Miss) -> tuple[str, ...]:
        """The blocks that run the code that missed: those of the block's kind, and all others that compiled it or
        missed it too. A limit belongs to a code object, whatever blocks share it.
        """
        code = miss.event.code
        if code is None:
            return ()
        events = (*self.compiles.values(), *(m.event for m in self.misses))
        names = {e.block for e in events if e.block is not None and e.code == code}
        found = {fqn for name in names for fqn in self.context.same_kind(name)}
        if miss.event.kind == "limit_hit" and self.context.graphs is not None:
            # torch says nothing of a call that it no longer compiles
            found |= {
                b.fqn
                for b in self.context.blocks
                if b.fqn not in self._entered and not self.context.graphs.get(b.fqn)
            }
        known = [b.fqn for b in self.context.blocks if b.fqn in found]
        return (*known, *sorted(found - set(known)))

    def helper(self, miss: Miss) -> bool:
        """True for a frame that Dynamo compiles only because a graph broke: another function than the one that each
        block is entered by.
        """
        code, entered = miss.event.code, self._entered.get(miss.block or "")
        return code is not None and entered is not None and not miss.resumed and code != entered

    @staticmethod
    def _key(miss: Miss) -> tuple[str, str]:
        code = miss.event.code
        return (f"{code.file}:{code.line}" if code else "", miss.guard.source)

    def in_time(self, miss: Miss) -> bool:
        """See :meth:`Miss.in_time`; without blocks a value counts as changing in time."""
        key = self._key(miss)
        values = self._values.get(key, {})
        if key in self._repeated or any(len(v) > 1 for v in values.values()):
            return True
        return miss.block is None or miss.entry_block is None

    def equals_index(self, miss: Miss) -> bool:
        """True when every value seen under this guard is the index of the block that held it."""
        seen = self._values.get(self._key(miss), {})
        pairs = [(self.context.index(block), value) for block, values in seen.items() for value in values]
        return bool(pairs) and all(repr(index) == value for index, value in pairs)

    def values(self, miss: Miss) -> tuple[str, ...]:
        """The values met under this guard, in order."""
        found: dict[str, None] = {}
        for other in self.misses:
            if self._key(other) == self._key(miss):
                for value in (other.guard.expected, other.guard.actual):
                    if value is not MISSING:
                        found[repr(value)] = None
        return tuple(found)


def _told(guard: Condition) -> tuple[str | None, str | None]:
    """(expected, actual) in one spelling; None for what the guard does not tell."""
    if guard.kind == "identity":
        return None, None  # told by its type and met as itself: the two cannot be compared
    if guard.kind == "type":
        # the class is written with its module where it was expected; what was met is told by its value and
        # the name of its class
        return str(guard.expected).rpartition(".")[2] if guard.knows("expected") else None, guard.value_type
    return repr(guard.expected) if guard.knows("expected") else None, repr(guard.actual) if guard.knows(
        "actual"
    ) else None


def closest(event: Event) -> Reason | None:
    """The reason of the entry that came closest, else the first."""
    return next((r for r in event.reasons if r.closest), event.reasons[0] if event.reasons else None)


def _parameters(compiles: Iterable[Event]) -> dict[str, set[str]]:
    """Parameter names by the file of the code that was compiled whole, to tell a resumed function's own
    values from its arguments.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for event in compiles:
        if event.code is not None and RESUME not in event.code.qualname:
            found[event.code.file] |= {*event.compiled.arguments, *event.compiled.argument_names}
    return found


def frame_name(qualname: str) -> str:
    """``forward`` for ``torch_dynamo_resume_in_forward_at_12``, else the last part of the name."""
    found = re.search(RESUME + r"(\w+?)_at_\d+", qualname)
    return found[1] if found else qualname.rpartition(".")[2]
