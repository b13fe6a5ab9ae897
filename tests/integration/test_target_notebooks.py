"""The notebooks run from top to bottom, and are committed with what they print and draw."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


DRAWS = re.compile(r"plt\.subplots\(|\w_figure\(")
MACHINE = re.compile(r"(?<![\w.:<])/(?:home|root|tmp|Users|work|mnt|opt|private)/\w[^\s\"]*")


def outputs(cell):
    return [o for o in cell.get("outputs", ()) if o.output_type != "stream" or o.name != "stderr"]


def test_there_are_four():
    assert [path.name[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_with_outputs_and_without_traces_of_a_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert all(outputs(c) for c in code)
    assert not any(o.output_type == "error" for c in code for o in c.outputs)
    for cell in code:
        drawn = any("image/png" in o.get("data", {}) for o in cell.outputs)
        assert drawn == bool(DRAWS.search(cell.source)), cell.source
    assert MACHINE.findall(path.read_text(encoding="utf-8")) == []


def test_every_notebook_but_the_first_draws():
    sources = {p.name[0]: nbformat.read(p, as_version=4).cells for p in NOTEBOOKS}
    assert [n for n, cells in sources.items() if any(DRAWS.search(c.source) for c in cells)] == [
        "2",
        "3",
        "4",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_imports_what_there_is(path):
    """Cells are Python, and each name that they import from the package exists."""
    code = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    names = []
    for node in ast.walk(ast.parse("\n".join(re.sub(r"(?m)^%.*$", "", source) for source in code))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cftdiag"):
            names += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "cftdiag":
            names.append(("cftdiag", node.attr))
    assert names
    for module, name in names:
        assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")


@pytest.mark.everything(
    "minutes each; what they committed is compared with a fresh run, and its form is tested in `make test`"
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path, monkeypatch):
    from tests.notebooks import execute

    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    committed, fresh = (
        [c for c in nb.cells if c.cell_type == "code"]
        for nb in (nbformat.read(path, as_version=4), execute(path))
    )
    assert [[o.output_type for o in outputs(c)] for c in fresh] == [
        [o.output_type for o in outputs(c)] for c in committed
    ]
