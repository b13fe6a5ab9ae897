"""Reading torch's texts: graph breaks, user stacks, exceptions. Pure string functions; every pattern was seen
on torch 2.13.
"""

from __future__ import annotations

import dataclasses
import re

from cftdiag.error_text import shorten
from cftdiag.events import Frame

_FILE = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$')
_GB = re.compile(r"/gb/gb(\d+)\.html")
_HOP = re.compile(r"^\s*Higher Order Operator: (.+)$", re.M)
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (.*))?$", re.M | re.S)
_DATA_DEPENDENT = re.compile(r"data[- ]dependent", re.I)

#: What follows the message in a break's text.
_STOPS = (
    "\nUser code traceback:",
    "\nStack variable source attribution:",
    "\nfrom user code:",
    "\nSet TORCHDYNAMO_VERBOSE",
    "\nTraceback (most recent",
)

#: Exceptions that mean "this program cannot be captured whole", the fullgraph form of a graph break.
BREAKS = frozenset(
    {
        "Unsupported",
        "UserError",
        "GuardOnDataDependentSymNode",
        "UncapturedHigherOrderOpError",
        "StepUnsupported",
    }
)

#: Frames of torch that carry a call through and tell the user nothing.
_PLUMBING = (
    "/torch/_dynamo/",
    "/torch/nn/modules/module.py",
    "/torch/utils/_contextlib.py",
    "/torch/_compile.py",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Break:
    """What a break's text says. ``operator`` is the higher-order operator it happened in
    (``torch.utils.checkpoint.checkpoint``), or None.
    """

    gb_id: str | None
    gb_type: str
    reason: str
    explanation: str | None
    hints: tuple[str, ...]
    context: str | None
    operator: str | None
    structured: bool
    """False for a plain exception text, without torch's explanation and hints."""


def parse_break(text: str) -> Break:
    """Read the message of an ``Unsupported`` or of another exception that ends a capture (without its
    stacks).
    """
    text = message(text)
    lines = text.splitlines()
    marks = [i for i, line in enumerate(lines) if re.match(r"\s+(Explanation|Higher Order Operator): ", line)]
    first = next((line.strip() for line in lines if line.strip()), "")
    gb_type = lines[marks[0] - 1].strip() if marks and marks[0] else first
    gb = _GB.search(text)
    operator = _HOP.search(text)
    return Break(
        gb_id=f"GB{gb.group(1).zfill(4)}" if gb else None,
        gb_type=gb_type,
        reason=gb_type if marks else shorten(text.strip(), 2000),
        explanation=_field(text, "Explanation"),
        hints=tuple(_fields(text, "Hint")),
        context=_context(text),
        operator=operator.group(1).strip() if operator else None,
        structured=bool(marks) or gb is not None,
    )


def _context(text: str) -> str | None:
    """Torch's debug context. A branch's (2.15) names what its condition comes from in a paragraph of its own: of that
    the numbers that Python's generator drew, which no other words of the break tell.
    """
    said = _field(text, "Developer debug context")
    drawn = " ".join(dict.fromkeys(re.findall(r"random_value_\d+: graph input", text)))
    return " ".join(filter(None, (said, drawn))) or None


def message(text: str) -> str:
    """The message alone: without head lines, user stack, Python traceback and torch's closing advice."""
    text = text.partition("Graph Break Reason: ")[2] or text
    for stop in _STOPS:
        text = text.partition(stop)[0]
    return text


def break_stack(text: str) -> tuple[Frame, ...]:
    """The user stack of a break's text, innermost last, plumbing frames of torch left out (never the
    innermost).
    """
    for start in (
        "User code traceback:",
        "from user code:",
        "The graph break occurred in the following user code:",
    ):
        _, found, rest = text.rpartition(start) if start == "from user code:" else text.partition(start)
        if found:
            return user_frames(frames(rest))
    return ()


def frames(text: str) -> tuple[Frame, ...]:
    """Frames of a formatted traceback, up to the next Python traceback; markers under a line (``^^^``) are
    dropped.
    """
    found: list[Frame] = []
    lines = text.partition("\nTraceback (most recent")[0].splitlines()
    for i, line in enumerate(lines):
        match = _FILE.match(line)
        if match:
            code = lines[i + 1].strip() if i + 1 < len(lines) and not _FILE.match(lines[i + 1]) else ""
            found.append(
                Frame(
                    file=match.group(1), line=int(match.group(2)), function=match.group(3), code=code or None
                )
            )
    return tuple(found)


def user_frames(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The stack without torch's plumbing; the innermost frame always stays."""
    return tuple(f for i, f in enumerate(stack) if i == len(stack) - 1 or not is_plumbing(f.file))


def is_plumbing(file: str | None) -> bool:
    """True for the files of torch that only pass a call on."""
    return file is not None and any(part in file for part in _PLUMBING)


def is_torch(file: str | None) -> bool:
    """True for any file of torch."""
    return file is not None and "/torch/" in file and "-packages/" in file


def exception(text: str) -> tuple[str, str]:
    """(class name, message) of the last exception of a formatted traceback."""
    head, _, tail = text.rpartition("\nTraceback (most recent call last):")
    body = tail if head else text
    match = _EXCEPTION.search(body)
    if match is None:
        return "", body.strip()
    return match.group(1).rpartition(".")[2], match.group(2) or ""


def is_break(name: str, text: str) -> bool:
    """True when an exception of class ``name`` says that the program cannot be captured (rather than that
    something failed).
    """
    return name in BREAKS or (name == "TorchRuntimeError" and bool(_DATA_DEPENDENT.search(text)))


def _field(text: str, name: str) -> str | None:
    return next(iter(_fields(text, name)), None)


def _fields(text: str, name: str) -> list[str]:
    """Values of ``  Name: value`` lines; a value runs over lines until the next field or an empty line."""
    pattern = rf"^\s+{name}: (.*?)(?=\n\s*\n|\n  (?:Explanation|Hint|Developer debug context|Higher Order Operator): |\Z)"
    return [" ".join(m.group(1).split()) for m in re.finditer(pattern, text, re.M | re.S)]
