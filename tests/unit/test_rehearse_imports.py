"""Hooks on imports that begin before torch's and end after it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from cftdiag.rehearse import import_hooks


def test_module_that_imports_torch_in_its_middle_is_hooked_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(import_hooks, "_WAITING", {})
    (tmp_path / "late_torch.py").write_text("torch = 1\n")
    (tmp_path / "early_package.py").write_text("import late_torch\nmade = late_torch.torch + 1\n")
    seen: list[int] = []
    import_hooks.expect("early_package")
    import_hooks.after_import(
        "late_torch",
        lambda torch: import_hooks.after_import("early_package", lambda module: seen.append(module.made)),
    )
    # a question after the module is no import
    assert importlib.util.find_spec("late_torch") is not None
    assert "late_torch" not in sys.modules
    importlib.import_module("early_package")
    assert seen == [2]
    import_hooks.after_import("early_package", lambda module: seen.append(3))
    assert seen == [2, 3]
