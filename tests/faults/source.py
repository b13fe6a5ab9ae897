"""A model's own file, copied, and a body put into it at a random place."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import re
import textwrap
from pathlib import Path
from random import Random

from tests.faults.fault import HERE, Fault

NAMES = ("rescale", "stabilise", "centre", "gate_states", "renorm", "soft_clip", "temper", "blend_states")
PACKAGES = ("tensor_tools", "seqkit", "fastblocks", "trainlib", "flowops")
FILES = ("functional", "layers", "numerics", "utils", "ops")


@functools.lru_cache(maxsize=32)
def parsed(text: str) -> ast.Module:
    """The tree of a file, which nobody changes."""
    return ast.parse(text)


@functools.cache
def copied(model_type: str) -> str:
    """The text of transformers' file of a model, with imports that work from anywhere."""
    spec = importlib.util.find_spec("transformers")
    assert spec and spec.origin
    folder = Path(spec.origin).parent / "models" / model_type
    text = (folder / f"modeling_{model_type}.py").read_text()
    bases = {1: f"transformers.models.{model_type}", 2: "transformers.models", 3: "transformers"}

    def absolute(found: re.Match[str]) -> str:
        base, rest = bases[len(found[2])], found[3]
        return f"{found[1]}from {base}{'.' + rest if rest else ''} import"

    return re.sub(r"(?m)^(\s*)from (\.+)([\w.]*) import", absolute, text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """The forward of a class: where its statements begin (line numbers from 1) and the tensor that enters it."""

    class_line: int
    class_end: int
    bases_empty: bool
    def_line: int
    indent: int
    starts: tuple[int, ...]
    tensor: str


def method_of(text: str, name: str) -> Method | None:
    """None where the class has no forward of its own, or one whose first argument is no tensor of hidden states."""
    for node in parsed(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "forward" and len(item.args.args) > 1:
                    body = item.body[1:] if _is_text(item.body[0]) else item.body
                    return Method(
                        class_line=node.lineno,
                        class_end=node.end_lineno or node.lineno,
                        bases_empty=not node.bases,
                        def_line=item.lineno,
                        indent=body[0].col_offset,
                        starts=tuple(s.lineno for s in body),
                        tensor=item.args.args[1].arg,
                    )
    return None


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclasses.dataclass(kw_only=True)
class Files:
    """The files of a program; each line of a fault ends with a mark until :meth:`settle` takes the marks off."""

    modeling: str
    others: dict[str, str] = dataclasses.field(default_factory=dict)


def copy_class(text: str, name: str, new: str) -> str:
    """Put a copy of a class behind it under another name."""
    for node in parsed(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            lines = text.split("\n")
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            own = lines[first - 1 : node.end_lineno]
            own[node.lineno - first] = own[node.lineno - first].replace(f"class {name}", f"class {new}", 1)
            end = node.end_lineno or 0
            return "\n".join([*lines[:end], "", "", *own, *lines[end:]])
    raise LookupError(name)


def inject(
    files: Files,
    fault: Fault,
    *,
    style: str,
    holder: str,
    home: str,
    names: list[str],
    mark: str,
    random: Random,
) -> str:
    """Put a fault's body into the forward of class ``holder``; the name of the module in which ``top`` lies.

    Each line of body and top gets the comment ``mark``, the line at fault ``mark`` and HERE.
    """
    method = method_of(files.modeling, holder)
    assert method is not None
    lines = files.modeling.split("\n")
    function = names.pop()
    top = _marked(fault.top, mark)
    start = random.choice(method.starts)
    at = start - 1
    pad = " " * method.indent
    x = method.tensor
    own_body = _named(_marked(fault.body, mark), x)
    function_body = _named(_marked(fault.body, mark), "x")
    if style in ("block", "submodule"):
        lines[at:at] = _indented(own_body, method.indent)
        lines[method.class_line - 1 : method.class_line - 1] = []
        text = _before_class(lines, method, top.split("\n") if top else [])
    elif style == "helper":
        lines[at:at] = [f"{pad}{x} = {function}(self, {x})"]
        made = [f"def {function}(self, x):", *_indented(function_body, 4), "    return x", "", ""]
        text = _before_class(lines, method, [*([top, "", ""] if top else []), *made])
    elif style == "mixin":
        lines[at:at] = [f"{pad}{x} = self.{function}({x})"]
        mixin = "".join(part.capitalize() for part in function.split("_")) + "Mixin"
        line = lines[method.class_line - 1]
        lines[method.class_line - 1] = re.sub(r"\(", f"({mixin}, ", line, count=1)
        made = [
            f"class {mixin}:",
            f"    def {function}(self, x):",
            *_indented(function_body, 8),
            "        return x",
            "",
            "",
        ]
        text = _before_class(lines, method, [*([top, "", ""] if top else []), *made])
    elif style == "decorator":
        at = method.def_line - 1
        lines[at:at] = [f"{' ' * (method.indent - 4)}@with_{function}"]
        made = [
            f"def with_{function}(forward):",
            "    @functools.wraps(forward)",
            f"    def wrapper(self, {x}, *args, **kwargs):",
            *_indented(own_body, 8),
            f"        return forward(self, {x}, *args, **kwargs)",
            "",
            "    return wrapper",
            "",
            "",
        ]
        text = _before_class(lines, method, ["import functools", "", *([top, "", ""] if top else []), *made])
    elif style == "library":
        lines[at:at] = [f"{pad}{x} = {function}(self, {x})"]
        package, _, file = home.rpartition(".")
        made = [
            '"""Operations on hidden states."""',
            "",
            "import torch",
            "",
            *([top, "", ""] if top else [""]),
            f"def {function}(self, x):",
            *_indented(function_body, 4),
            "    return x",
            "",
        ]
        files.others.setdefault(f"{package}/__init__.py", "")
        files.others[f"{package}/{file}.py"] = "\n".join(made)
        text = _before_class(lines, method, [f"from {home} import {function}", "", ""])
    else:
        raise ValueError(style)
    files.modeling = text
    return home if style == "library" else ""


def _before_class(lines: list[str], method: Method, made: list[str]) -> str:
    """Lines put before a class, above its decorators."""
    at = method.class_line - 1
    while at and lines[at - 1].startswith("@"):
        at -= 1
    return "\n".join([*lines[:at], *"\n".join(made).split("\n"), *([""] if made else []), *lines[at:]])


def _marked(text: str, mark: str) -> str:
    out = []
    for line in text.split("\n") if text else []:
        here = HERE in line
        line = line.replace(HERE, "").rstrip()
        out.append(f"{line}  # {mark}{'!' if here else ''}" if line.strip() else line)
    return "\n".join(out)


def _named(text: str, x: str) -> str:
    """A body with its ``x`` under the name that the tensor has at its place."""
    return re.sub(r"(?<![\w.'\"])x(?![\w'\"])", x, text)


def _indented(text: str, width: int) -> list[str]:
    return textwrap.indent(text, " " * width).split("\n")


def settle(text: str, marks: list[str]) -> tuple[str, dict[str, list[int]], dict[str, list[int]]]:
    """The text without its marks, and per mark its lines and its lines at fault."""
    lines, all_of, here = text.split("\n"), {m: [] for m in marks}, {m: [] for m in marks}
    for number, line in enumerate(lines, 1):
        found = re.search(r"  # (\S+?)(!?)$", line)
        if found and found[1] in all_of:
            all_of[found[1]].append(number)
            if found[2]:
                here[found[1]].append(number)
            lines[number - 1] = line[: found.start()]
    return "\n".join(lines), all_of, here
