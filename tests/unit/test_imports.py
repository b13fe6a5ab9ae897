"""No import runs in a circle, lazy imports included: neither between modules nor between rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cftdiag", "trainer")


def modules(root: Path, packages: tuple[str, ...] = PACKAGES) -> dict[str, Path]:
    """Dotted name -> file of every module."""
    names = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements anywhere below, those for the type checker alone left out."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for other in node.orelse:
            yield from _imports(other)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)


def graph(names: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module -> modules that it imports."""
    edges: dict[str, set[str]] = {}
    for name, path in names.items():
        found = edges.setdefault(name, set())
        for statement in _imports(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(statement, ast.Import):
                found |= {alias.name for alias in statement.names}
                continue
            if statement.level:
                package = name if path.name == "__init__.py" else name.rpartition(".")[0]
                base = package.split(".")[: len(package.split(".")) - statement.level + 1]
                source = ".".join([*base, *filter(None, [statement.module])])
            else:
                source = statement.module or ""
            for alias in statement.names:
                inner = f"{source}.{alias.name}"
                found.add(inner if inner in names else source)
        found &= set(names)
        found.discard(name)
    return edges


def rooms(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same between the packages below the top (``cftdiag.check``) and the modules beside them."""

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    found: dict[str, set[str]] = {}
    for name, others in edges.items():
        found.setdefault(room(name), set()).update(room(other) for other in others)
    return {name: others - {name} for name, others in found.items()}


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes of which each reaches every other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for other in edges.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    reach = {name: reached(name) for name in edges}
    groups = {
        tuple(sorted(n for n in reach[name] if name in reach.get(n, ())))
        for name in edges
        if name in reach[name]
    }
    return sorted(list(group) for group in groups)


EDGES = graph(modules(ROOT))


def test_no_modules_import_one_another_in_a_circle():
    assert cycles(EDGES) == []


def test_no_rooms_import_one_another_in_a_circle():
    assert cycles(rooms(EDGES)) == []


def test_facts_and_diagnosis_stand_below_the_check():
    below = {"cftdiag.events", "cftdiag.findings", "cftdiag.diagnose", "cftdiag.options"}
    above = {"cftdiag.check", "cftdiag.passes", "cftdiag.monitor", "cftdiag.cli", "cftdiag.report"}
    between = rooms(EDGES)
    assert {name: between[name] & above for name in below} == {name: set() for name in below}


@pytest.mark.parametrize(
    "text, edge",
    [
        ("from p.b.inner import f", "p.b.inner"),
        ("from p.b import inner", "p.b.inner"),
        ("from p import b", "p.b"),
        ("import p.b.inner", "p.b.inner"),
        ("def f():\n    from p.b import inner", "p.b.inner"),
        ("from .b import inner", "p.b.inner"),
        ("if TYPE_CHECKING:\n    from p.b import inner", None),
    ],
)
def test_the_graph_sees_every_way_to_import(tmp_path, text, edge):
    for path, code in (
        ("a.py", text),
        ("__init__.py", ""),
        ("b/__init__.py", ""),
        ("b/inner.py", "from p import a"),
    ):
        (tmp_path / "p" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / path).write_text(code)
    edges = graph(modules(tmp_path, ("p",)))
    assert edges["p.a"] == ({edge} if edge else set())
    assert cycles(edges) == ([["p.a", "p.b.inner"]] if edge == "p.b.inner" else [])
    assert cycles(rooms(edges)) == ([["p.a", "p.b"]] if edge else [])
