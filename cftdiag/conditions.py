"""What a guard tests: one frozen object, made once from torch's text and carried by the event.

:mod:`cftdiag.guards` reads the texts; this module only says what can be read. Imports nothing of torch.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Final, Literal


class Missing(enum.Enum):
    """The type of :data:`MISSING`: a member of an enum survives pickling and copying."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""Stands for a value that the guard does not tell; None is a value."""


class Code(str):
    """A value that no literal spells (``torch.float32``, ``BFloat16``): its ``repr`` is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


Kind = Literal[
    "other",  # a text that is not known
    "backend",  # compiled by another backend
    "contains",  # a key, an index or a part that is there or not
    "attribute",  # an attribute that is there or not
    "tensor_type",  # the class of a tensor
    "type",  # the type of a Python object
    "identity",  # this very object
    "state",  # torch's global state
    "dispatch",  # dispatch keys of a tensor
    "dtype",
    "device",
    "requires_grad",
    "rank",
    "marking",  # dimensions marked dynamic, unbacked or static
    "value",  # a Python value or number
    "none",  # None or not
    "length",  # of a container
    "keys",  # of a dict
    "alias",  # two names for one object, or two tensors on one storage
    "size",  # one size of a tensor, fixed
    "stride",  # one stride of a tensor, fixed or as an expression
    "storage_offset",
    "shape",  # an expression over sizes
]

Form = Literal[
    "",  # no expression over numbers
    "fixed",  # x.size()[1] == 5
    "exclusion",  # 12 != x.size()[1]
    "multiple",  # (x.size()[1] % 8) == 0
    "equal",  # x.size()[1] == y.size()[0]
    "range",  # 2 <= x.size()[1] <= 1024
    "bound",  # 2 <= x.size()[1]
    "relation",  # 4096*x.size()[0]*x.size()[1] < 5242880
]

Through = Literal["", "closure", "class", "optimizer"]

#: Stages at which torch finds an entry wrong, early to late: an entry whose first wrong property comes late came
#: close, for everything checked before held. Expressions over sizes are checked after all other guards.
STAGES = (
    "other",
    "type",
    "identity",
    "global_state",
    "dispatch_key",
    "dtype",
    "device",
    "requires_grad",
    "rank",
    "value",
    "size",
    "stride",
    "shape",
)
_STAGE: dict[Kind, str] = {
    **{"backend": "other", "tensor_type": "type", "state": "global_state", "dispatch": "dispatch_key"},
    **dict.fromkeys(("marking", "none", "length", "keys", "alias", "contains", "attribute"), "value"),
    "storage_offset": "shape",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One number that an expression names: ``x.size()[1]``, ``x.storage_offset()``, ``self.p``."""

    source: str
    what: Literal["size", "stride", "storage_offset", "value"]
    index: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A guard, taken apart. Sources are written without ``L[...]``: ``x``, ``self.fc``, ``G['flag']``."""

    text: str
    """The guard without its comment, on one line."""
    kind: Kind = "other"
    form: Form = ""
    source: str = ""
    """What is tested; of an expression its first term."""
    index: int | None = None
    """The dimension of a size or a stride."""
    negated: bool = False
    """``is not None``, ``not hasattr``, ``!=``."""
    absent: bool = False
    """True when torch says that the guarded part is not there at all."""
    expected: object = MISSING
    """The value that the code was compiled for."""
    actual: object = MISSING
    """The value that was met."""
    key: object = MISSING
    """The key whose presence is tested; of global state the names that changed."""
    value_type: str | None = None
    """Type name of the value that was met."""
    terms: tuple[Term, ...] = ()
    """The numbers of an expression, in the order of the text; a guard on one size or stride has it as its term."""
    multiple: int | None = None
    """8 of ``(x.size()[1] % 8) == 0``."""
    low: int | None = None
    """Smallest number that the guard takes, of a ``bound`` or ``range`` on one term."""
    high: int | None = None
    """Largest number that the guard takes."""

    @property
    def stage(self) -> str:
        """The member of :data:`STAGES` at which torch checks it."""
        if self.absent:
            return "type"  # nothing below a part that is not there is checked
        if self.form:
            return "shape"
        return _STAGE.get(self.kind, self.kind)

    @property
    def root(self) -> str:
        """First name of the source; ``G`` for a global."""
        inner = re.search(r"(?:type|dict|list|len)\((?:type\()?([A-Za-z_]\w*)", self.source)
        found = inner or re.match(r"([A-Za-z_]\w*)", self.source)
        return found[1] if found else ""

    @property
    def path(self) -> str:
        """What follows the root (``.step``, ``['Cfg'].scale``); the whole source where a call wraps it."""
        if re.search(r"(?:type|dict|list|len)\(", self.source):
            return self.source
        return self.source[len(self.root) :]

    @property
    def through(self) -> Through:
        """What the value is read through: a closure (or a function's own parts), the optimizer's settings, a class."""
        if _CLOSURE.search(self.source):
            return "closure"
        if _OPTIMIZER.search(self.source):
            return "optimizer"
        return "class" if _CLASS.search(self.source) else ""

    @property
    def global_name(self) -> str | None:
        """``Cfg`` of ``G['Cfg'].scale``; None for a local."""
        found = re.match(r"G\[['\"]([\w.]+)['\"]\]", self.source)
        return found[1] if found else None

    @property
    def attributes(self) -> tuple[str, ...]:
        """``("scale",)`` of ``G['Cfg'].scale``: the attributes after the root or the global, when nothing else follows."""
        tail = re.sub(r"^G\[['\"][\w.]+['\"]\]", "", self.source) if self.root == "G" else self.path
        return tuple(tail.split(".")[1:]) if re.fullmatch(r"(?:\.\w+)+", tail) else ()

    def knows(self, name: Literal["expected", "actual"]) -> bool:
        """True when that value is known."""
        return (self.expected if name == "expected" else self.actual) is not MISSING

    @property
    def function(self) -> str:
        """The function whose code, closure or bound arguments are tested: ``self.f`` of ``self.f.__code__``."""
        found = _CLOSURE.search(self.source)
        return self.source[: found.start()] if found else self.root

    def renamed(self, old: str, new: str) -> Condition:
        """The same with the source ``old`` written ``new``: ``args[0]`` as the parameter's name."""
        return dataclasses.replace(
            self,
            source=_renamed(self.source, old, new),
            text=self.text.replace(old, new),
            terms=tuple(
                dataclasses.replace(term, source=_renamed(term.source, old, new)) for term in self.terms
            ),
        )


_CLOSURE = re.compile(
    r"\.__closure__\[|\.cell_contents|\.__(?:code|defaults|kwdefaults)__|\.keywords\[|\.func\b|\.__func__\b"
)
_OPTIMIZER = re.compile(r"param_groups\[\d+\]\[")
_CLASS = re.compile(r"\btype\(|\.__class__\b|\.__mro__\[")


def _renamed(source: str, old: str, new: str) -> str:
    if source == old or source.startswith((f"{old}.", f"{old}[")):
        return new + source[len(old) :]
    return source
