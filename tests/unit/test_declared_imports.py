"""What is imported is declared, and imports run one way: the trainer knows the check, never the reverse."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Imported name -> distribution, where the two differ.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "huggingface_hub": "huggingface-hub",
    "mlflow": "mlflow-skinny",
    "functorch": "torch",
}
#: Imported only beside a script of the user's that runs on it, or by it.
BROUGHT = {"accelerate", "pytest"}
#: Of ours.
OWN = {"cftdiag", "trainer"}


def _imports(package: str) -> Iterator[tuple[str, str]]:
    """(file, imported top-level name), also of imports inside of functions."""
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                yield str(file.relative_to(ROOT)), name.partition(".")[0]


def _declared() -> tuple[set[str], dict[str, set[str]]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^A-Za-z0-9_.-]", r)[0].lower().replace("_", "-") for r in requirements}

    extras = {name: names(found) for name, found in project["optional-dependencies"].items()}
    return names(project["dependencies"]), extras


@pytest.mark.parametrize("package", ["cftdiag", "trainer"])
def test_every_import_is_declared(package: str) -> None:
    required, extras = _declared()
    declared = required | {name for extra, found in extras.items() if extra != "dev" for name in found}
    undeclared = sorted(
        {
            (file, name)
            for file, name in _imports(package)
            if name not in sys.stdlib_module_names | OWN | BROUGHT
            and DISTRIBUTIONS.get(name, name).lower().replace("_", "-") not in declared
        }
    )
    assert undeclared == []


def test_every_requirement_is_used() -> None:
    required, _ = _declared()
    used = {
        DISTRIBUTIONS.get(name, name).lower().replace("_", "-")
        for package in OWN
        for _, name in _imports(package)
    }
    # Programs that are started, not imported.
    assert required - used - {"tlparse"} == set()


def test_the_check_imports_no_trainer() -> None:
    assert [file for file, name in _imports("cftdiag") if name == "trainer"] == []


def test_the_hooks_of_the_command_line_exist() -> None:
    from cftdiag.cli import check
    from trainer import preflight

    for hook in (check.CHECK_CONFIG, check.APPLY_METHOD):
        module, _, function = hook.partition(":")
        assert module == preflight.__name__ and callable(getattr(preflight, function))


def test_distributions_are_what_is_installed() -> None:
    for name, distribution in DISTRIBUTIONS.items():
        if distribution in {d.name.lower() for d in metadata.distributions() if d.name}:
            assert distribution in {d.lower() for d in metadata.packages_distributions()[name]}
