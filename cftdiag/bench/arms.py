"""What is compared: arms, each with what it changes over the one that compiles nothing."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.errors import InputError
from cftdiag.options import AC_MODES, DYNAMIC, METHODS, SCOPES

EAGER = "eager"
#: What an arm of a model or a configuration may say, and its values; None: a whole number, or any text.
KEYS: Mapping[str, Sequence[str] | None] = {
    "scope": SCOPES,
    "dynamic": tuple(DYNAMIC),
    "ac": AC_MODES,
    "method": METHODS,
    "pad": None,
    "backend": None,
}
#: Facts of two runs that are held against each other; an arm that changes what is on the left differs in those.
DIFFERS: Mapping[str, frozenset[str]] = {
    "method": frozenset({"parameters", "optimizer", "loss"}),
}
#: The same by name, for what the user allows.
FIELDS = ("parameters", "optimizer", "batches", "loss")
#: Both, for under the first alone a call with ``fullgraph=True`` raises from torch 2.14 on: it found no compiled frame.
_SWITCHED_OFF = {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train what all arms train."""

    name: str
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of a model or configuration: key of :data:`KEYS` -> value."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Of a command: variables of its environment."""
    arguments: tuple[str, ...] = ()
    """Of a command: words put behind it."""

    @property
    def may_differ(self) -> frozenset[str]:
        """Facts that differ from the eager arm's by what this arm is."""
        return frozenset().union(*(DIFFERS.get(key, frozenset()) for key in self.changes))


def of_options(texts: Sequence[str], *, own_scope: str = "block") -> tuple[Arm, ...]:
    """The arms of a model or configuration, the eager one first. A text is ``block+loss,ac=full``: a scope, then
    what else is changed. ``all`` is one arm for each scope; without texts it is ``own_scope`` alone. Raises
    :class:`InputError`.
    """
    arms = {EAGER: Arm(name=EAGER, changes={"scope": "none"})}
    for text in texts or [own_scope]:
        names = [s for s in SCOPES if s != "none"] if text == "all" else [text]
        for name in names:
            arm = Arm(name=name, changes=_changes(name))
            if name in arms:
                raise InputError(f"--arm {name} is given twice; drop one")
            arms[name] = arm
    return tuple(arms.values())


def _changes(text: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for number, part in enumerate(text.split(",")):
        key, equals, value = part.strip().partition("=")
        if not equals and number == 0:
            key, value = "scope", key
        if key not in KEYS:
            raise InputError(
                f"--arm {text}: {key!r} is none of {', '.join(KEYS)}; write for example block,ac=full"
            )
        known = KEYS[key]
        if known is not None and value not in known:
            raise InputError(f"--arm {text}: {key} {value!r} is unknown; use one of {', '.join(known)}")
        if key == "pad" and not (value.isascii() and value.isdigit() and int(value) > 0):
            raise InputError(
                f"--arm {text}: pad {value!r} is no positive whole number; write for example pad=64"
            )
        if key == "backend" and not value:
            raise InputError(f"--arm {text}: names no backend; write for example backend=aot_eager")
        changes[key] = int(value) if key == "pad" else value
    return {"scope": "block", **changes}


def of_command(texts: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of a training command: ``NAME: VARIABLE=VALUE --flag``, variables of the environment and words
    put behind the command. The first is the command with torch.compile switched off; without texts the second is
    the command as it is. Raises :class:`InputError`.
    """
    arms = {EAGER: Arm(name=EAGER, env=dict(_SWITCHED_OFF))}
    for text in texts or ["compiled:"]:
        name, colon, rest = text.partition(":")
        name = name.strip()
        if not colon or not name:
            raise InputError(
                f"--arm {text}: an arm of a command is a name, a colon, and what it adds, such as 'padded: --pad-to-multiple-of 64'"
            )
        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise InputError(f"--arm {text}: {error}; close the quotes") from error
        count = next((i for i, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
        if name in arms and name != EAGER:
            raise InputError(f"--arm {name} is given twice; drop one")
        arms[name] = Arm(
            name=name,
            env=dict(word.split("=", 1) for word in words[:count]),
            arguments=tuple(words[count:]),
        )
    return tuple(arms.values())
