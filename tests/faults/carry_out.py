"""Carry out the edit that a check prints beside a remedy, as its reader would, in a process without our code.

An edit is a few lines of Python of the training program. A line is run as it is written where it can be; those that
speak of the program's own names (``block.compile(...)``, ``mark_dynamic(hidden_states, 1)``) are done to the program.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_COMPILE = re.compile(r"block\.compile\((.*)\)$")
_MARK = re.compile(r"torch\._dynamo\.(?:decorators\.)?(mark_dynamic|mark_unbacked)\((\w+), (\d+)\)$")
_SETTING = re.compile(r"torch\.[\w.]+(?: = .+|\.add\([\w.]+\))$")
_MODEL = re.compile(r"model\.config\.\w+ = .+$")
_EXPORT = re.compile(r"export TORCH_COMPILE_DYNAMIC_SOURCES=(.+)$")


class NotMechanical(ValueError):
    """An edit that is no line of a training program."""


@dataclasses.dataclass(kw_only=True)
class Edit:
    """What to do before the model is built (``settings``), to the model, to ``block.compile``'s keywords, to the
    arguments of a block (function, parameter, dimension) and to the batches.
    """

    settings: list[str] = dataclasses.field(default_factory=list)
    model: list[str] = dataclasses.field(default_factory=list)
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    marks: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)
    drop_last: bool = False
    warm_up: bool = False
    inputs_need_grad: bool = False


def read(text: str) -> Edit:
    """The edit of a remedy, line by line. Raises :class:`NotMechanical` for a line of another form."""
    edit = Edit()
    for line in filter(None, map(str.strip, text.splitlines())):
        if found := _COMPILE.match(line):
            call = ast.parse(f"f({found[1]})", mode="eval").body
            assert isinstance(call, ast.Call)
            edit.keywords |= {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
        elif found := _MARK.match(line):
            edit.marks.append((found[1], found[2], int(found[3])))
        elif found := _EXPORT.match(line):  # torch reads it once, while it is imported
            edit.settings.append(f"torch.compiler.config.dynamic_sources = {found[1]}")
        elif _SETTING.match(line):
            edit.settings.append(line)
        elif _MODEL.match(line):
            edit.model.append(line)
        elif "drop_last=True" in line:
            edit.drop_last = True
        elif line.startswith("model(**batch)"):
            edit.warm_up = True
        elif line.startswith("x.requires_grad_(True)"):
            edit.inputs_need_grad = True
        else:
            raise NotMechanical(line)
    return edit


def run_lines(lines: Sequence[str], **names: Any) -> None:
    """Run lines of an edit with torch and the modules that they may name."""
    import builtins
    import logging
    import warnings

    import torch

    for line in lines:
        exec(line, {"torch": torch, "logging": logging, "warnings": warnings, "builtins": builtins, **names})


def batches_of(edit: Edit, batches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The batches that are left; a row is counted in the first tensor of a batch."""

    def rows(batch: Mapping[str, Any]) -> int:
        return int(next(iter(batch.values())).shape[0])

    return [b for b in batches if not edit.drop_last or rows(b) >= rows(batches[0])]


def arguments_changed(edit: Edit, block: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, a block's compiled call, with the edit done to its arguments before each one."""
    if not edit.marks and not edit.inputs_need_grad:
        return call
    import torch

    signature = inspect.signature(type(block).forward)

    def changed(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(block, *args, **kwargs).arguments
        for function, name, dim in edit.marks:
            if isinstance(value := given.get(name), torch.Tensor):
                home = torch._dynamo if function == "mark_dynamic" else torch._dynamo.decorators
                getattr(home, function)(value, dim)
        if edit.inputs_need_grad:
            for value in given.values():
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.is_leaf:
                    value.requires_grad_(True)
        return call(*args, **kwargs)

    return changed
