"""What is wrong with a request and can be seen before torch is imported: source that is no Python, a builder that is
not there, torch settings that torch does not have. Each raises ``click.UsageError``.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cftdiag.fix.patch import file_in

#: Tokens of one forward: beyond, their ids alone are half a gigabyte and the request is a slip of the finger.
MOST_TOKENS = 2**26

#: Types of a literal, and the names of a value's type that may take its place.
_TAKES = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}


def refuse_source(model: str | None) -> None:
    """Refuse a FILE.py:build that cannot be imported for its syntax or has no such function."""
    name = file_in(model or "")
    path = Path(name)
    if not name.endswith(".py") or not path.is_file():
        return  # told where the model is looked up
    builder = (model or "")[len(name) :].lstrip(":") or "build"
    try:
        tree = ast.parse(path.read_bytes(), filename=name)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise click.UsageError(f"{name}{line}: {error.msg}; mend the file") from error
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{name}: cannot be read as Python ({error})") from error
    names = _top_names(tree)
    if names is not None and builder not in names:
        close = difflib.get_close_matches(builder, names, n=1, cutoff=0.6)
        hint = f"did you mean {name}:{close[0]}?" if close else "define it or name another after the colon"
        raise click.UsageError(f"{name}: has no function {builder!r}; {hint}")


def _top_names(tree: ast.Module) -> set[str] | None:
    """Names that a module binds anywhere outside of its functions and classes; None where that cannot be told."""
    names: set[str] = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            if node.name == "__getattr__":
                return None
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in node.names):
                return None
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("globals", "setattr", "exec", "vars"):
            return None
        todo += ast.iter_child_nodes(node)
    return names


def refuse_config(path: str | None) -> None:
    """Refuse a configuration of the trainer that is no YAML mapping."""
    if path is None:
        return
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not UTF-8 text"
        raise click.UsageError(f"{path}: cannot be read ({reason}); give the trainer's YAML") from error
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise click.UsageError(f"{path}{line}: no YAML: {problem}; mend the file") from error
    if not isinstance(data, dict):
        raise click.UsageError(
            f"{path}: holds {_article(type(data))}, not options by name; write lines such as `batch_size: 8`"
        )


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Refuse a torch setting that the installed torch has not, or with a value of another type."""
    for name, value in settings.items():
        module, _, rest = name.partition("config.")
        known = _settings_of(f"{module}config")
        if known is None:
            continue  # not a module of settings that can be read here: torch itself will say
        if rest not in known:
            close = difflib.get_close_matches(rest, known, n=2, cutoff=0.6)
            hint = (
                f"did you mean {' or '.join(f'{module}config.{c}' for c in close)}?"
                if close
                else "check its name"
            )
            raise click.UsageError(f"--set {name}: this torch has no such setting; {hint}")
        kind = known[rest]
        wrong = kind is not None and (type(value) not in _TAKES[kind]) and value is not None
        if wrong and kind is not None:
            raise click.UsageError(
                f"--set {name}={value}: takes {_article(kind)}, not {_article(type(value))}; give for example {_EXAMPLES[kind]}"
            )


_EXAMPLES = {bool: "True", int: "16", float: "0.5", str: "'text'"}


def _article(kind: type) -> str:
    return f"an {kind.__name__}" if kind.__name__[0] in "aeiou" else f"a {kind.__name__}"


@functools.cache
def _settings_of(module: str) -> Mapping[str, type | None] | None:
    """Setting -> type of its default, None where that is no literal, read from the module's source; None for a
    module that is not there. Imports nothing.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0], *module.split(".")[1:]).with_suffix(".py")
    if not path.is_file():
        return None
    found: dict[str, type | None] = {}
    _collect(ast.parse(path.read_bytes()).body, "", found)
    return found


def _collect(body: list[ast.stmt], prefix: str, found: dict[str, type | None]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef):
            _collect(node.body, f"{prefix}{node.name}.", found)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[prefix + node.target.id] = _kind(ast.unparse(node.annotation), node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[prefix + target.id] = _kind("", node.value)
        elif isinstance(node, ast.If):
            _collect(node.body + node.orelse, prefix, found)


def _kind(annotation: str, value: ast.expr | None) -> type | None:
    """The one type that a setting takes; None where it may take several or nobody says."""
    if annotation:
        return {"bool": bool, "int": int, "float": float, "str": str}.get(annotation)
    if isinstance(value, ast.Constant) and type(value.value) in _TAKES:
        return type(value.value)
    return None


def refuse_sizes(batch_size: int | None, lengths: tuple[int, ...] | None) -> None:
    """Refuse a forward of more tokens than anybody trains with."""
    rows, longest = batch_size or 1, max(lengths or (1,))
    if rows * longest > MOST_TOKENS:
        raise click.UsageError(
            f"--batch-size {rows} with length {longest} is {rows * longest} tokens in one forward; give at most {MOST_TOKENS}"
        )
