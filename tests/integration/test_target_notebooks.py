"""The notebooks run from top to bottom, and are committed with what they print and draw."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


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
    assert any("image/png" in o.get("data", {}) for c in code for o in c.outputs) or path.name.startswith("1")
    text = path.read_text(encoding="utf-8")
    assert str(FOLDER.parent) not in text


@pytest.mark.slow
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
