"""Private torch is reached through one door, and every name behind it is in the table that the doctor tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cftdiag.torch_private import compiled_call, table, wrappers
from cftdiag.torch_private.names import Name, TorchLacks, by_alias, resolve

HOME = Path(__file__).parents[2]
ROOM = HOME / "cftdiag" / "torch_private"
#: Programs of the user's, shown with a finding: they show what users write.
EXAMPLES = HOME / "cftdiag" / "diagnose" / "causes" / "examples"
#: Private attributes of torch's objects: outside the room no code names them, as attributes or as texts.
ATTRIBUTES = {
    "_compiled_call_impl", "_call_impl", "_wrapped_call_impl", "_orig_mod", "_checkpoint_wrapped_module",
    "_fsdp_wrapped_module", "_boxed_call", "_debug_get_cache_entry_list", "_precompile_config", "_is_view",
    "_forward_hooks", "_backward_hooks", "_forward_pre_hooks", "_get_backend", "invalidation_reason",
}  # fmt: skip
#: Parts of torch that are private without an underscore.
PRIVATE = ("torch.fx.experimental", "torch.testing._internal")


def _files() -> list[Path]:
    found = [path for top in ("cftdiag", "trainer") for path in (HOME / top).rglob("*.py")]
    return [path for path in found if ROOM not in path.parents and EXAMPLES not in path.parents]


def _is_private(dotted: str) -> bool:
    parts = dotted.split(".")
    hidden = any(p.startswith("_") and not p.endswith("__") for p in parts)
    return parts[0] == "torch" and (hidden or dotted.startswith(PRIVATE))


def private_uses(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every private name of torch in a Python text."""
    names: dict[str, str] = {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
                if _is_private(alias.name):
                    yield node.lineno, alias.name
    for dotted in list(names.values()):
        if _is_private(dotted):
            yield 0, dotted
    # `aten = torch.ops.aten` gives a name too
    for node in ast.walk(tree):
        for target, value in _assigned(node):
            dotted = _dotted(value, names)
            if dotted is not None and dotted.startswith("torch."):
                names[target] = dotted
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node, names)
            if node.attr in ATTRIBUTES or (dotted is not None and _is_private(dotted)):
                yield node.lineno, dotted or node.attr
        elif isinstance(node, ast.Constant) and node.value in ATTRIBUTES:
            yield node.lineno, str(node.value)


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(name, value) of an assignment, tuples taken apart."""
    if not isinstance(node, ast.Assign):
        return
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    else:
        pairs = [(target, value)]
    yield from ((left.id, right) for left, right in pairs if isinstance(left, ast.Name))


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])


def test_no_private_name_of_torch_is_used_outside_the_room() -> None:
    found = [
        f"{path.relative_to(HOME)}:{line}: {name}"
        for path in _files()
        for line, name in private_uses(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch._inductor.config as settings",
        "from torch import _guards",
        "from torch._dynamo.exc import Unsupported",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
        "import torch\ntorch._dynamo.reset()",
        "import torch as t\nt._C._current_graph_task_id()",
        "import torch\naten = torch.ops.aten\naten._local_scalar_dense",
        "import torch\na, b = torch.ops.aten, torch.ops.c10d\nb._allgather_base_",
        "module._compiled_call_impl = None",
        "getattr(module, '_orig_mod', module)",
    ],
)
def test_the_search_sees_every_way_in(source: str) -> None:
    assert list(private_uses(source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "REMEDY = 'torch._dynamo.config.capture_scalar_outputs'",
        "class A:\n    def f(self):\n        return self._blocks",
    ],
)
def test_the_search_leaves_public_names_alone(source: str) -> None:
    assert list(private_uses(source)) == []


def test_every_private_import_of_the_room_is_in_the_table() -> None:
    listed = {name.point.replace(":", ".") for name in table.names()}
    for path in ROOM.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
                for alias in node.names:
                    assert f"{node.module}.{alias.name}" in listed, path


def test_aliases_of_a_module_are_its_own() -> None:
    import importlib

    for subject in table.SUBJECTS:
        names = importlib.import_module(f"cftdiag.torch_private.{subject}").NAMES
        assert len(by_alias(names)) == len(names), subject


def test_every_module_of_the_room_that_declares_names_is_in_the_table() -> None:
    declaring = {path.stem for path in ROOM.glob("*.py") if "\nNAMES = " in path.read_text()}
    assert declaring == set(table.SUBJECTS)


def test_a_missing_name_says_where_and_what_is_lost() -> None:
    gone = Name("torch._dynamo.eval_frame:no_such_thing", "guards", "no forecast")
    [row] = table.probe([gone])
    assert row.broken and row.detail.startswith("torch._dynamo.eval_frame:no_such_thing does not exist")
    assert row.detail.endswith(": no forecast")
    with pytest.raises(TorchLacks, match="no forecast; run cftdiag doctor") as raised:
        resolve({"gone": gone}, "gone", "here")
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (Name("inspect:signature", "trace", "x", leading=("other",)), "expected ('other',) first"),
        (Name("inspect:signature", "trace", "x", parameters=("nothing",)), "takes no nothing"),
        (Name("inspect:unwrap", "trace", "x", reads=("memo", "nothing")), "has no local nothing"),
        (Name("builtins:len", "trace", "x", reads=("a",)), "is no Python function"),
        (Name("string:digits", "trace", "x", equals="01"), "expected '01'"),
        (Name("no_such_module_anywhere:x", "trace", "x"), "does not exist"),
        (Name("inspect:signature", "trace", "x", leading=("obj",)), None),
        (Name("inspect:unwrap", "trace", "x", reads=("memo",)), None),
        (Name("unittest:TestCase.setUpClass", "trace", "x", leading=("cls",)), None),
    ],
)
def test_a_name_is_more_than_its_presence(name: Name, problem: str | None) -> None:
    found = name.check()
    assert found is None if problem is None else found is not None and problem in found


def test_what_is_not_needed_degrades_nothing() -> None:
    [row] = table.probe([Name("inspect:nothing", "trace", "x", needed=False)])
    assert not row.ok and not row.broken


@pytest.mark.parametrize(
    ("broken", "depth"),
    [
        (set(), "codegen"),
        ({"monitor", "kernels"}, "codegen"),
        ({"codegen for the CPU"}, "joint"),
        ({"joint", "codegen for the CPU"}, "trace"),
        ({"record"}, None),
        ({"trace"}, None),
    ],
)
def test_the_depth_that_is_left(broken: set[str], depth: str | None) -> None:
    assert table.depth_available(broken) == depth


def test_the_room_is_imported_without_torch() -> None:
    import subprocess
    import sys

    names = ", ".join(f"cftdiag.torch_private.{subject}" for subject in table.SUBJECTS)
    code = f"import sys, {names}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrappers_are_stripped_from_names() -> None:
    strip = wrappers.strip
    assert strip("model._orig_mod.layers.3._checkpoint_wrapped_module.mlp") == "model.layers.3.mlp"
    assert strip("module._orig_mod.layers.0") == "layers.0"
    assert strip("module.layers.0") == "module.layers.0"
    assert strip("_fsdp_wrapped_module") == ""


class _Compiled:
    """A module as torch keeps a compiled one: the compiled call is an attribute of its own."""

    def __init__(self) -> None:
        self._modules: dict[str, object] = {}
        self._compiled_call_impl = lambda *args, **kwargs: ("compiled", args, kwargs)


def test_a_compiled_call_is_wrapped_and_left_as_it_was() -> None:
    module = _Compiled()
    before = module._compiled_call_impl
    seen = []

    def around(call: compiled_call.Call, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        seen.append(args)
        return call(*args, **kwargs)

    undo = compiled_call.wrap(module, around)
    assert module._compiled_call_impl(1, k=2) == ("compiled", (1,), {"k": 2}) and seen == [(1,)]
    undo()
    assert module._compiled_call_impl is before


def test_only_the_own_layer_is_taken_off() -> None:
    module = _Compiled()
    first = compiled_call.wrap(module, lambda call, args, kwargs: call(*args, **kwargs))
    second = compiled_call.wrap(module, lambda call, args, kwargs: "outer")
    outer = module._compiled_call_impl
    first()
    assert module._compiled_call_impl is outer
    second()


def test_tracing_passes_a_wrapper_by(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    module = _Compiled()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    compiled_call.wrap(module, lambda call, args, kwargs: "traced")
    assert module._compiled_call_impl()[0] == "compiled"


def test_a_module_that_is_not_compiled_is_wrapped_only_when_asked() -> None:
    import torch

    module = torch.nn.Identity()
    compiled_call.wrap(module, lambda call, args, kwargs: "around")
    assert module(3) == 3
    undo = compiled_call.wrap(module, lambda call, args, kwargs: "around", eager=True)
    assert module(3) == "around"
    undo()
    assert module(3) == 3 and "forward" not in module.__dict__
