"""Checks as tests: ``@pytest.mark.cftdiag(...)`` on a function that returns what ``build()`` returns, and the
fixture ``cftdiag_check``. pytest loads this module by its entry point; it imports torch when a test uses it.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_MARK = (
    "cftdiag(fullgraph=True, max_recompiles=0, lengths=[...], target=..., baseline=FILE, **options): check the model that "
    "the function returns, as build() does; the other options are those of cftdiag.check"
)
_OPTIONS_OF_OURS = ("baseline",)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cftdiag``, and the setting that makes it count."""
    group = parser.getgroup("cftdiag")
    group.addoption(
        "--cftdiag", action="store_true", help="run the tests that check torch.compile (see cftdiag_run)"
    )
    parser.addini(
        "cftdiag_run",
        "when to run tests that check torch.compile: 'always' (default), or 'flag', with --cftdiag alone",
        default="always",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", _MARK)
    if config.getini("cftdiag_run") not in ("always", "flag"):
        raise pytest.UsageError(f"cftdiag_run is {config.getini('cftdiag_run')!r}; write 'always' or 'flag'")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs ``--cftdiag`` where it is not given."""
    if _asked(config):
        return
    skip = pytest.mark.skip(reason="needs --cftdiag")
    for item in items:
        if item.get_closest_marker("cftdiag") or "cftdiag_check" in getattr(item, "fixturenames", ()):
            item.add_marker(skip)


def _asked(config: pytest.Config) -> bool:
    return config.getoption("--cftdiag") or config.getini("cftdiag_run") == "always"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A marked function builds: call it, check what it returns."""
    mark = pyfuncitem.get_closest_marker("cftdiag")
    if mark is None or "cftdiag_check" in pyfuncitem.fixturenames:
        return None
    if mark.args:
        raise pytest.UsageError(f"{pyfuncitem.nodeid}: the options of cftdiag are given by name")
    names = pyfuncitem._fixtureinfo.argnames
    built = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    _check(pyfuncitem, built, None, mark.kwargs)
    return True


@pytest.fixture
def cftdiag_check(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """``cftdiag_check(model, batches, max_recompiles=0, ...)`` checks now and fails the test where the
    expectations are not met; returns the :class:`~cftdiag.check.CheckReport`. Options of the test's mark hold
    where the call gives none.
    """
    mark = request.node.get_closest_marker("cftdiag")
    held: Mapping[str, Any] = {} if mark is None else mark.kwargs

    def check(subject: Any, batches: Sequence[Mapping[str, Any]] | None = None, **options: Any) -> Any:
        return _check(request.node, subject, batches, {**held, **options})

    return check


@pytest.fixture
def cftdiag_lengths(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """The ``lengths`` of the test's mark, for a function that makes its batches of them."""
    mark = request.node.get_closest_marker("cftdiag")
    lengths = None if mark is None else mark.kwargs.get("lengths")
    if not lengths:
        raise pytest.UsageError(
            f"{request.node.nodeid}: cftdiag_lengths needs @pytest.mark.cftdiag(lengths=[...])"
        )
    return tuple(lengths)


def _check(
    item: pytest.Item, subject: Any, batches: Sequence[Mapping[str, Any]] | None, asked: Mapping[str, Any]
) -> Any:
    """Check, hold the expectations against the report, and fail with its findings."""
    from cftdiag.check import CheckError
    from cftdiag.check import check as run_check
    from cftdiag.diagnose import CAUSES
    from cftdiag.gate import Baseline, judge
    from cftdiag.gate.expectations import Expectations

    names = {field.name for field in dataclasses.fields(Expectations)}
    options = {k: v for k, v in asked.items() if k not in names and k not in _OPTIONS_OF_OURS}
    options.setdefault("verify", False)  # a test says whether it holds; `cftdiag check` proves what mends it
    try:
        expected = Expectations(**{k: v for k, v in asked.items() if k in names})
        file = asked.get("baseline")
        baseline = None if file is None else Baseline.read(item.config.rootpath / file)
        if isinstance(subject, tuple | list) and batches is None and len(subject) == 2:
            subject, batches = subject
        if not isinstance(subject, str):
            _leave_out_lengths(options, item)
        report = run_check(subject, batches, **options)
    except (CheckError, ValueError) as error:
        pytest.fail(str(error), pytrace=False)
    data = report.to_dict()
    data = judge(data, baseline=baseline, sources=_sources(item, subject), causes=CAUSES).annotate(data)
    item.user_properties.append(("cftdiag_verdict", report.verdict))
    unmet = expected.unmet(data, coverage=_coverage(subject, data))
    if unmet:
        pytest.fail(_message(unmet, data), pytrace=False)
    return report


def _leave_out_lengths(options: dict[str, Any], item: pytest.Item) -> None:
    """A live model's batches have their lengths: a test that took them from its mark has followed it."""
    lengths = options.pop("lengths", None)
    if lengths is not None and "cftdiag_lengths" not in getattr(item, "fixturenames", ()):
        raise ValueError(
            "a function that returns a model makes its batches itself: take the lengths of the mark by the fixture "
            "cftdiag_lengths (or return the name of a model, such as 'Qwen3-4B')"
        )


def _sources(item: pytest.Item, subject: Any) -> list[Path]:
    """Files whose comments may accept a finding: the test's, and that of ``file.py:build``."""
    files = [item.path]
    if isinstance(subject, str) and subject.rpartition(":")[0].endswith(".py"):
        files.append(Path(subject.rpartition(":")[0]))
    return files


def _coverage(subject: Any, data: Mapping[str, Any]) -> float | None:
    """Share of a live model's parameters that are in blocks which run a graph; None for another subject."""
    model = getattr(subject, "model", subject)
    if not callable(getattr(model, "named_parameters", None)):
        return None
    compiled = [b["fqn"] for b in data["blocks"] if b["graphs"]]
    sizes = {name: int(p.numel()) for name, p in model.named_parameters()}
    inside = sum(
        size for name, size in sizes.items() if any(not fqn or name.startswith(f"{fqn}.") for fqn in compiled)
    )
    return inside / sum(sizes.values()) if sizes else None


def _message(unmet: Sequence[str], data: Mapping[str, Any]) -> str:
    from cftdiag.report import terminal

    out = io.StringIO()
    terminal.show(data, file=out, width=110)
    return "\n".join([*(f"cftdiag: {line}" for line in unmet), "", out.getvalue().rstrip()])
