"""The comparison of `make gpu`, on reports and logs made up: it must see what differs."""

import copy

import pytest

from tests.gpu.agreement import of_logs, of_reports
from tests.truth.compare import Log

SOURCE = "import triton\n@triton.jit\ndef triton_poi_0(in_ptr0):\n    pass\n"


def configuration(registers=32, **more):
    usage = {"registers": registers, "stack": 0, "loads": {"128": 2}, "stores": {"128": 1}}
    return {"settings": {"XBLOCK": 1024, "num_warps": 4}, "usage": usage, "shared": 0, **more}


def report(**more):
    kernel = {
        "name": "triton_poi_0",
        "source": SOURCE,
        "compiled": {"configurations": [configuration(**more), configuration(registers=40)]},
    }
    code = f"async_compile.triton({SOURCE!r})\ndef call(args):\n    triton_poi_0.run(args)\n\ndef benchmark_compiled_module():\n    pass\n"
    graph = {
        "code": code,
        "direction": "forward",
        "sizes": {"s0": 2, "s1": 520},
        "kernels": [kernel],
        "externs": [{"op": "aten.mm"}],
    }
    return {"blocks": [{"kind": "Layer", "graphs": [graph]}]}


def log(texts=(), guards=("L['x'].size()[1] % 8 == 0", "check_tensor(L['x'])")):
    return Log(recompiles={"0 520": [], "1 777": list(texts)}, guards={"[0/0]": list(guards)})


def differing(rows, binding=True):
    return {row.what for row in rows if row.binding is binding and not row.agrees}


def test_a_report_agrees_with_itself():
    rows = of_reports(report(), report(winner=True))
    assert not differing(rows) and not differing(rows, binding=False)
    assert all(row.of for row in rows)


def test_a_winner_outside_the_configurations_is_told_and_is_no_failure():
    rows = of_reports(report(), report())
    assert not differing(rows) and differing(rows, binding=False) == {
        "autotuning picked one of the predicted configurations"
    }


def _name(graph):
    graph["kernels"][0]["name"] = "triton_red_0"


def _text(graph):
    graph["kernels"][0]["source"] += "    return 1\n"


def _call(graph):
    graph["externs"][0]["op"] = "aten.bmm"


def _launch(graph):
    graph["code"] = graph["code"].replace(".run(args)", ".run(args, 1)")


def _benchmark(graph):
    graph["code"] += "    return 1\n"


def _settings(graph):
    graph["kernels"][0]["compiled"]["configurations"][1]["settings"]["num_warps"] = 8


def _registers(graph):
    graph["kernels"][0]["compiled"]["configurations"][1]["usage"]["registers"] = 41


def _shared(graph):
    graph["kernels"][0]["compiled"]["configurations"][1]["shared"] = 1024


def _missing(graph):
    graph["kernels"].clear()


NEEDS = "registers, spills, access widths, shared memory of a configuration"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_name, {"kernels of a graph, in order"}),
        (_text, {"text of a kernel"}),
        (_call, {"library calls of a graph, in order"}),
        (_launch, {"output code of a graph: buffers, launches and calls in order"}),
        (_benchmark, set()),
        (_settings, {"configurations of a kernel"}),
        (_registers, {NEEDS}),
        (_shared, {NEEDS}),
        (_missing, {"kernels of a graph, in order"}),
    ],
)
def test_each_difference_is_seen_in_its_row(change, what):
    real = copy.deepcopy(report(winner=True))
    change(real["blocks"][0]["graphs"][0])
    assert differing(of_reports(report(), real)) == what


def test_a_graph_more_is_seen():
    real = report(winner=True)
    real["blocks"][0]["graphs"] *= 2
    (row,) = (row for row in of_reports(report(), real) if row.what == "graphs")
    assert not row.agrees and row.differ == ("1 predicted, 2 real",)


def test_logs_agree_or_say_where_they_do_not():
    assert not differing(of_logs(log(["a"]), log(["a"])))
    assert differing(of_logs(log(["a"]), log(["b"]))) == {"recompiles of a step"}
    other = log(guards=("L['x'].size()[1] % 16 == 0", "check_tensor(L['x'])"))
    assert differing(of_logs(log(), other)) == {"guards on sizes"}
    tensors = log(guards=("L['x'].size()[1] % 8 == 0", "check_tensor(L['x'], device=0)"))
    rows = of_logs(log(), tensors)
    assert not differing(rows) and differing(rows, binding=False) == {"all other guards"}
    more = Log(recompiles=log().recompiles, guards={**log().guards, "[0/1]": []})
    assert "compiles" in differing(of_logs(log(), more))
