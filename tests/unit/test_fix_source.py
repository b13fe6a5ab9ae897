"""A remedy's change written into source: the right calls, and nothing else of the file."""

from __future__ import annotations

import ast

import pytest

from cftdiag.fix.source import edited

SOURCE = '''\
"""A program."""

import re

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

WORDS = re.compile("x")  # not ours
engine = nn.Linear(2, 2)


@torch.compile
def loss(x): return x.sum()


def main(model):
    for block in model.layers:
        block.compile(dynamic=False)  # one by one
    whole = torch.compile(
        model,
        mode="default",
    )
    return whole, DataLoader([1], batch_size=4)
'''


def _changed(change: dict, source: str = SOURCE) -> tuple[list[str], list[str]]:
    """(lines gone, lines new) of the source with a change, which stays Python."""
    result = edited(source, change)
    assert result.whole, result.left
    ast.parse(result.source)
    before, after = source.splitlines(), result.source.splitlines()
    return [line for line in before if line not in after], [line for line in after if line not in before]


def test_every_compile_call_gets_the_keyword_and_no_other_call() -> None:
    gone, new = _changed({"dynamic": True})
    assert gone == [
        "@torch.compile",
        "        block.compile(dynamic=False)  # one by one",
        '        mode="default",',
    ]
    assert new == [
        "@torch.compile(dynamic=True)",
        "        block.compile(dynamic=True)  # one by one",
        '        mode="default", dynamic=True,',
    ]


def test_auto_is_written_as_torch_spells_it() -> None:
    assert "        block.compile(dynamic=None)  # one by one" in _changed({"dynamic": "auto"})[1]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("from torch import compile as tc\nf = tc(g)", "f = tc(g, dynamic=True)"),
        ("import torch as th\nf = th.compile(g, )", "f = th.compile(g, dynamic=True, )"),
        ("import functools, torch\nf = functools.partial(torch.compile, dynamic=False)",
         "f = functools.partial(torch.compile, dynamic=True)"),
        ("import torch\nm.layers[0].compile()", "m.layers[0].compile(dynamic=True)"),
        ("import torch\nf = torch.compile(g, **{'mode': 'default'})", "f = torch.compile(g, **{'mode': 'default'}, dynamic=True)"),
    ],
)  # fmt: skip
def test_ways_of_compiling(line: str, wanted: str) -> None:
    assert wanted in _changed({"dynamic": True}, line + "\n")[1]


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('x')\n",
        "import torch\nf = torch.compile(g, **options)\n",
        "x = compile('1', 'f', 'eval')\n",
        "import torch\nmap(torch.compile, blocks)\n",
    ],
)
def test_what_is_no_place_for_a_keyword(source: str) -> None:
    result = edited(source, {"dynamic": True})
    assert result.left == {"dynamic": True} and result.source == source


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("Subject(model=m, batches=b)", "Subject(model=m, batches=b, compile_kwargs={'dynamic': True})"),
        ("Subject(model=m, compile_kwargs={'mode': 'x'})", "Subject(model=m, compile_kwargs={'mode': 'x', 'dynamic': True})"),
        ("Subject(model=m, compile_kwargs={})", "Subject(model=m, compile_kwargs={'dynamic': True})"),
        ("Subject(model=m, compile_kwargs={'dynamic': False})", "Subject(model=m, compile_kwargs={'dynamic': True})"),
        ("Subject(model=m, compile_kwargs=dict(dynamic=False))", "Subject(model=m, compile_kwargs=dict(dynamic=True))"),
    ],
)  # fmt: skip
def test_a_subject_that_the_check_compiles_says_it_to_the_check(given: str, wanted: str) -> None:
    assert edited(
        f"import cftdiag\ns = cftdiag.{given}\n", {"compile_kwargs": {"dynamic": True}}
    ).source.endswith(f"s = cftdiag.{wanted}\n")


def test_a_setting_stands_behind_the_imports_or_where_it_is_set() -> None:
    change = {"torch._dynamo.config.capture_scalar_outputs": True}
    assert edited(SOURCE, change).source.startswith(
        SOURCE[: SOURCE.index("\nWORDS")]
        + "import torch._dynamo.config\ntorch._dynamo.config.capture_scalar_outputs = True\n"
    )
    known = "import torch as t\nt._dynamo.config.capture_scalar_outputs = False  # slow\n"
    assert edited(known, change).source == known.replace("False", "True")


def test_settings_run_after_the_lines_that_they_need() -> None:
    two = {
        "torch._functorch.config.donated_buffer": False,
        "torch._dynamo.config.ignore_logging_functions": "logging.Logger.warning",
    }
    source = edited("'''Doc.'''\nfrom __future__ import annotations\nx = 1\n", two).source
    namespace: dict = {}
    exec(compile(source, "f", "exec"), namespace)
    import logging

    import torch._dynamo.config
    import torch._functorch.config

    try:
        assert torch._functorch.config.donated_buffer is False
        assert logging.Logger.warning in torch._dynamo.config.ignore_logging_functions
    finally:
        torch._functorch.config.donated_buffer = True
        torch._dynamo.config.ignore_logging_functions.discard(logging.Logger.warning)


def test_a_variable_is_set_before_torch_is_imported() -> None:
    lines = edited(SOURCE, {"env": {"TORCH_COMPILE_DYNAMIC_SOURCES": "L['x']"}}).source.splitlines()
    assert lines.index("os.environ['TORCH_COMPILE_DYNAMIC_SOURCES'] = \"L['x']\"") < lines.index(
        "import torch"
    )
    assert lines.index("import os") > lines.index("import re")


def test_loaders_and_models_take_their_keywords() -> None:
    assert _changed({"drop_last": True})[1] == [
        "    return whole, DataLoader([1], batch_size=4, drop_last=True)"
    ]
    loads = (
        "t = AutoTokenizer.from_pretrained('x')\n"
        "m = AutoModelForCausalLM.from_pretrained('x', attn_implementation='eager')\n"
    )
    assert _changed({"attn": "sdpa"}, loads)[1] == [
        "m = AutoModelForCausalLM.from_pretrained('x', attn_implementation='sdpa')"
    ]


def test_layout_that_is_not_ascii_or_not_unix_stays() -> None:
    source = "import torch\r\n# caf\u00e9 \x0c\r\ns = '\u00e9\u4e2d'; b.compile(); t = '\u00e9'\r\n"
    assert edited(source, {"dynamic": True}).source == source.replace("compile()", "compile(dynamic=True)")


def test_what_has_no_place_in_source_is_left() -> None:
    change = {"ac": "full", "dynamic": True}
    result = edited(SOURCE, change)
    assert result.left == {"ac": "full"} and "block.compile(dynamic=True)" in result.source
