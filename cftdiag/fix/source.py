"""A remedy's change written into Python source: keywords of compile calls, torch settings, environment variables.

Pure: text in, text out. What is replaced is found in the syntax tree; everything else of the file, comments and
layout included, stays as it is.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from cftdiag.options import DYNAMIC

_SETS = ("ignore_logging_functions", "reorderable_logging_functions")
"""Settings of Dynamo that are sets of functions: a remedy adds one by its dotted name."""

#: Change of a remedy -> (glob of the callee, its keyword). A call that gives the keyword already is one too.
#: Tokenizers and configurations are loaded by ``from_pretrained`` as well, so a model must say so by its name.
_KEYWORDS = {
    "drop_last": ("*DataLoader", "drop_last"),
    "pad_to_multiple_of": ("*DataCollator*", "pad_to_multiple_of"),
    "attn": ("*Model*.from_pretrained", "attn_implementation"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Edited:
    """Source with a change, and what of the change has no place in it."""

    source: str
    left: Mapping[str, Any]

    @property
    def whole(self) -> bool:
        """True when all of the change is in the source."""
        return not self.left


def edited(source: str, change: Mapping[str, Any]) -> Edited:
    """``source`` with a remedy's ``change``; raises ``SyntaxError`` for source that is no Python."""
    file = _File(source)
    left = {}
    for key, value in change.items():
        if key.startswith("torch."):
            placed = file.setting(key, value)
        elif key == "env":
            placed = file.environment(value)
        elif key == "compile_kwargs":
            placed = file.compile_keywords(value)
        elif key == "dynamic":
            placed = file.compile_keywords({"dynamic": DYNAMIC.get(value, value)})
        elif key == "compile_backend":
            placed = file.compile_keywords({"backend": value})
        elif key in _KEYWORDS:
            placed = file.call_keyword(*_KEYWORDS[key], value)
        else:
            placed = False
        if not placed:
            left[key] = value
    return Edited(source=file.text(), left=left)


class _File:
    """A source file and the replacements to be made in it, by character offsets."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        # line ends as the parser counts them: a form feed or U+2028 ends none
        self._starts = [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n", source))]
        self._replacements: dict[tuple[int, int], str] = {}
        self._imports: dict[str, None] = {}
        self._statements: list[str] = []
        self.names = dict(_bound(self.tree))

    def text(self) -> str:
        """The source with every replacement."""
        if self._statements:
            at, before = self._behind_imports()
            lines = [f"import {name}" for name in self._imports] + self._statements
            self._insert(at, before + "".join(line + "\n" for line in lines))
        text = self.source
        for (start, end), new in sorted(self._replacements.items(), reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def compile_keywords(self, keywords: Mapping[str, Any]) -> bool:
        """Give every compile call of the file these keywords; False where there is none, or one that takes
        unknown keywords.
        """
        found = [*self._compile_calls()]
        subjects = [] if found else [call for call in self._calls() if self._callee(call) == "Subject"]
        plain = list(self._bare_decorators())
        if not found and not subjects and not plain:
            return False
        if any(k.arg is None and not isinstance(k.value, ast.Dict) for call in found for k in call.keywords):
            return False
        for call in found:
            for name, value in keywords.items():
                self._keyword(call, name, repr(value))
        for node in plain:
            given = ", ".join(f"{name}={value!r}" for name, value in keywords.items())
            self._insert(self._end(node), f"({given})")
        placed = [self._subject_keywords(call, keywords) for call in subjects]
        return all(placed)

    def call_keyword(self, callee: str, keyword: str, value: Any) -> bool:
        """Give every call of ``callee`` a keyword; False where there is none."""
        calls = [
            call
            for call in self._calls()
            if any(k.arg == keyword for k in call.keywords) or fnmatchcase(ast.unparse(call.func), callee)
        ]
        for call in calls:
            self._keyword(call, keyword, repr(value))
        return bool(calls)

    def setting(self, name: str, value: Any) -> bool:
        """Set a setting of torch behind the imports, or where the file sets it already."""
        module, _, last = name.partition("config.")
        module += "config"
        if last in _SETS:
            return self._add_to_set(module, name, str(value))
        aliases = {name} | {
            bound + name.removeprefix(what)
            for bound, what in self.names.items()
            if name.startswith(what + ".")
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} <= aliases:
                self._replace(node.value, repr(value))
                return True
        self._imports[module] = None
        self._statements.append(f"{name} = {value!r}")
        return True

    def _add_to_set(self, module: str, name: str, function: str) -> bool:
        home, _, attribute = function.partition(".")
        if not function.replace(".", "").isidentifier():
            return False
        if home != "builtins" and self.names.get(home) != home:
            self._imports[home] = None
        self._imports[module] = None
        self._statements.append(f"{name}.add({attribute if home == 'builtins' else function})")
        return True

    def environment(self, variables: Mapping[str, str]) -> bool:
        """Set environment variables before anything outside of the standard library is imported."""
        first = next(
            (node for node in self.tree.body if any(_foreign(root) for root in _imported(node))), None
        )
        at = self._behind_imports()[0] if first is None else self._starts[first.lineno - 1]
        lines = ["import os\n", *(f"os.environ[{k!r}] = {str(v)!r}\n" for k, v in variables.items())]
        self._insert(at, "".join(lines))
        return True

    def _behind_imports(self) -> tuple[int, str]:
        """Where a statement goes that needs the imports and must precede all else."""
        last = None
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.If)):
                break
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                last = node
        if last is None and ast.get_docstring(self.tree) is not None:
            last = self.tree.body[0]  # type: ignore[assignment]
        if last is None:
            return 0, ""
        line = last.end_lineno or last.lineno
        at = self._starts[line]
        return at, "" if self.source[:at].endswith("\n") else "\n"

    def _calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def _callee(self, call: ast.Call) -> str:
        return ast.unparse(call.func).rpartition(".")[2]

    def _compile_calls(self) -> Iterator[ast.Call]:
        for call in self._calls():
            function = call.func
            if self._is_torch_compile(function):
                yield call
            elif isinstance(function, ast.Attribute) and function.attr == "compile" and not call.args:
                # Module.compile; a module that is imported (re, sys) compiles something else
                if ast.unparse(function.value) not in self._modules():
                    yield call
            elif self._callee(call) == "partial" and call.args and self._is_torch_compile(call.args[0]):
                yield call

    def _modules(self) -> set[str]:
        """Names of the modules that the file imports as such."""
        return {
            bound for node in ast.walk(self.tree) if isinstance(node, ast.Import) for bound, _ in _bound(node)
        }

    def _is_torch_compile(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute) and function.attr == "compile":
            return isinstance(function.value, ast.Name) and self.names.get(function.value.id) == "torch"
        return isinstance(function, ast.Name) and self.names.get(function.id) == "torch.compile"

    def _bare_decorators(self) -> Iterator[ast.expr]:
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                yield from (d for d in node.decorator_list if self._is_torch_compile(d))

    def _subject_keywords(self, call: ast.Call, keywords: Mapping[str, Any]) -> bool:
        """The keywords among ``compile_kwargs`` of a Subject."""
        given = next((k.value for k in call.keywords if k.arg == "compile_kwargs"), None)
        if given is None:
            self._keyword(call, "compile_kwargs", repr(dict(keywords)))
        elif isinstance(given, ast.Dict):
            known = {
                k.value: v
                for k, v in zip(given.keys, given.values, strict=True)
                if isinstance(k, ast.Constant)
            }
            for name, value in keywords.items():
                if name in known:
                    self._replace(known[name], repr(value))
                else:
                    self._insert(self._end(given) - 1, f"{', ' if given.keys else ''}{name!r}: {value!r}")
        elif isinstance(given, ast.Call) and ast.unparse(given.func) == "dict" and not given.args:
            for name, value in keywords.items():
                self._keyword(given, name, repr(value))
        else:
            return False
        return True

    def _keyword(self, call: ast.Call, name: str, value: str) -> None:
        for keyword in call.keywords:
            if keyword.arg == name:
                self._replace(keyword.value, value)
                return
        inside: list[ast.AST] = [*call.args, *(k.value for k in call.keywords)]
        if inside:
            self._insert(max(map(self._end, inside)), f", {name}={value}")
        else:
            self._insert(self._end(call) - 1, f"{name}={value}")

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.source)
        return start + len(self.source[start:end].encode()[:column].decode())

    def _end(self, node: Any) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)

    def _insert(self, at: int, text: str) -> None:
        self._replacements[at, at] = self._replacements.get((at, at), "") + text

    def _replace(self, node: Any, text: str) -> None:
        span = (self._offset(node.lineno, node.col_offset), self._end(node))
        self._replacements[span] = text


def _bound(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name, what it is) of every import of the file, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []


def _foreign(root: str) -> bool:
    return root not in sys.stdlib_module_names
