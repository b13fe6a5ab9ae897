"""Run notebooks from top to bottom: ``python -m tests.notebooks [NOTEBOOK ...]`` keeps what they print and
draw; all of them by default.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def execute(path: Path) -> Any:
    """The notebook with fresh outputs; the file is left as it is. Raises ``nbclient``'s error of the first
    cell that fails.
    """
    notebook = nbformat.read(path, as_version=4)
    # times of the run and the pieces in which text arrived would make every run another file
    client = nbclient.NotebookClient(
        notebook,
        timeout=800,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    client.execute()
    return notebook


if __name__ == "__main__":
    for chosen in map(Path, sys.argv[1:] or sorted(FOLDER.glob("*.ipynb"))):
        nbformat.write(execute(chosen), chosen)
        print(f"ran {chosen}", flush=True)
