"""What was to be compiled and ran no graph is told, whoever asked for it and however."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import cftdiag
from cftdiag.capture import Recorder
from cftdiag.capture.compile_requests import CompileRequests
from cftdiag.details import CompileDetail
from cftdiag.events import Code, Event


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x)


def double(x):
    return x * 2


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _idle(ask, use):
    """Classes and skipped files of what ``ask`` compiled and ``use`` never ran compiled."""
    requests = CompileRequests()
    with requests, Recorder(on_event=requests.see):
        compiled = ask()
        use(compiled)
        return [(idle.cls, idle.skipped_file) for idle in requests.idle(lambda target: None)]


def _in_place(module):
    module.compile(backend="eager")
    return module


def test_what_runs_compiled_is_not_told() -> None:
    x = torch.ones(2, 4)
    assert not _idle(lambda: _in_place(Block()), lambda block: block(x))
    assert not _idle(lambda: torch.compile(Block(), backend="eager"), lambda block: block(x))
    assert not _idle(lambda: torch.compile(double, backend="eager"), lambda function: function(x))
    # a block of equal code is served by the other one's graph
    assert not _idle(lambda: [_in_place(Block()), _in_place(Block())], lambda blocks: [b(x) for b in blocks])
    assert not _idle(lambda: torch.compile(double, backend="eager", disable=True), lambda function: None)


class Loss(Block):
    def loss(self, x):
        return x.sum()

    def metric(self, x):
        return x.mean()


def test_what_a_library_decorates_as_it_is_imported_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages" / "decorating_library.py"
    library.parent.mkdir()
    library.write_text(
        "import torch\n@torch.compile(backend='eager')\ndef unused(x): return x\n"
        "def ask(f): return torch.compile(f, backend='eager')\nprepared = ask(lambda x: x)\n"
    )
    monkeypatch.syspath_prepend(str(library.parent))
    assert not _idle(lambda: importlib.import_module("decorating_library"), lambda module: None)
    # what it compiles later, for the one who calls it, is not
    library = importlib.import_module("decorating_library")
    assert _idle(lambda: library.ask(double), lambda function: None) == [("double", None)]


def test_a_method_is_held_by_its_own_code() -> None:
    x, module = torch.ones(2, 4), Loss()
    assert not _idle(lambda: torch.compile(module.loss, backend="eager"), lambda loss: loss(x))
    assert _idle(lambda: torch.compile(module.metric, backend="eager"), lambda metric: module(x)) == [
        ("Loss.metric", None)
    ]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    assert not _idle(lambda: torch.compile(optimizer.step, backend="eager"), lambda step: step())


def test_what_never_runs_is_told_with_the_reason_where_it_is_known() -> None:
    x = torch.ones(2, 4)
    assert _idle(lambda: torch.compile(Block(), backend="eager"), lambda block: None) == [("Block", None)]
    assert _idle(lambda: torch.compile(double, backend="eager"), lambda function: double(x)) == [
        ("double", None)
    ]
    sequential = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    [(cls, file)] = _idle(lambda: _in_place(sequential), lambda block: block(x))
    assert cls == "Sequential" and file.endswith("container.py")


def test_a_module_of_torch_in_a_wrapper_is_compiled() -> None:
    """``torch.compile(module)`` puts a function of its own around a forward in torch's files; ``module.compile()``
    does not.
    """
    x = torch.ones(2, 4)
    sequential = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    equal = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    assert not _idle(
        lambda: [torch.compile(module, backend="eager") for module in (sequential, equal)],
        lambda wrapped: [module(x) for module in wrapped],
    )

    torch._dynamo.reset()
    model = Block()
    requests, recorder = CompileRequests(), Recorder(on_event=lambda event: requests.see(event))
    recorder.watch(model)
    with requests, recorder:
        model.linear, model.other = torch.compile(model.linear, backend="eager"), torch.nn.Linear(4, 4)
        model.other.compile(backend="eager")
        model.other(model(x))
        recorder.blocks.refresh()
        assert [idle.target is model.other for idle in requests.idle(recorder.blocks.name)] == [True]


def test_modules_of_torch_that_are_compiled_in_place_share_a_graph() -> None:
    """From torch 2.14 on; before, none of them compiles and none is seen."""
    layers = {f"layers.{i}": torch.nn.Sequential(torch.nn.Linear(4, 4)) for i in range(2)}
    names = {id(layer): name for name, layer in layers.items()}
    requests = CompileRequests()
    with requests:
        for layer in layers.values():
            _in_place(layer)
        assert len(requests.idle(lambda target: names.get(id(target)))) == 2
        code = Code(qualname="inner", file="/x/torch/_dynamo/external_utils.py", line=40)
        detail = CompileDetail(ops=3, graphs=1)
        requests.see(
            Event(kind="compile", time=0.0, compile_id="0/0", block="layers.0", code=code, detail=detail)
        )
        assert requests.idle(lambda target: names.get(id(target))) == []


def test_torch_is_left_as_it_was_found() -> None:
    before = torch.compile
    with CompileRequests():
        assert torch.compile is not before
    assert torch.compile is before


def test_a_monitored_loop_without_a_model_says_that_nothing_runs_compiled(tmp_path, capsys) -> None:
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with cftdiag.Monitor(run_dir=tmp_path / "run", warmup_steps=2):
        block.compile(backend="eager")
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        for _ in range(4):
            block(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    report = cftdiag.monitor.report(tmp_path / "run")
    assert report["verdict"] == "not_viable"
    [finding] = report["findings"]
    assert finding["cause"] == "compiled_region_not_reached" and "Dynamo skips" in finding["explanation"]
    assert any("container.py" in text for text in finding["evidence"])
