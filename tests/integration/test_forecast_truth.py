"""The forecast of a run against the run itself: the same compiles at the same steps for the same guards."""

from __future__ import annotations

import pytest

from tests.warm import Warm

_START = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, "tests/integration")
from forecast_loops import *
"""

_SEE = pytest.mark.everything(
    "half a minute each; the toy meets guards of every form in `make test`, and real models in test_zoo_sample.py"
)
_LENGTHS = (16, 24, 33, 40, 41, 57, 64, 65, 80, 96, 100, 128)


@pytest.mark.parametrize(
    ("model", "dynamic", "seed", "variants"),
    [
        pytest.param("qwen3", True, 1, ("",), marks=_SEE),
        pytest.param("qwen3", None, 2, ("",), marks=_SEE),
        pytest.param("gemma3", True, 4, ("",), marks=_SEE),
        pytest.param("gpt2", None, 5, ("", "padded"), marks=_SEE),
    ],
)
def test_transformers_loops(
    model: str, dynamic: bool | None, seed: int, variants: tuple[str, ...], warm: Warm
) -> None:
    warm.run(
        _START
        + f"""
result = hold(lambda: causal_lm({model!r}), stream({seed}, 30, (1, 2, 2, 3), {_LENGTHS}, {variants}), dynamic={dynamic})
assert result.counts["probed"] > result.counts["run"], (result.counts, result.notes)
assert not result.notes, result.notes
assert result.counts["confirmed"], "nothing was run to confirm the forecast"
"""
    )


@_SEE
def test_static_lengths_hit_the_limit_where_the_run_does(warm: Warm) -> None:
    warm.run(
        _START
        + f"""
result = hold(lambda: causal_lm("llama"), stream(3, 30, (2, 3), {_LENGTHS}), dynamic=False)
assert result.limit_hit["limit"] == 8 and result.limit_hit["step"] == 10, result.limit_hit
assert len(result.regimes) == 8 and result.eager["shapes"]
assert all(r["bounds"][-1].startswith("S == ") for r in result.regimes)
"""
    )


def test_warming_the_regimes_of_a_plan_leaves_nothing_to_compile(warm: Warm) -> None:
    warm.run(
        _START
        + f"""
rows = stream(7, 25, (1, 2, 3), {_LENGTHS})
build = lambda: causal_lm("qwen3")
cold, _ = foreseen(build, rows, dynamic=None, backend="eager")
assert len(cold.compiles) >= 3
warm = list(dict.fromkeys(tuple(r["representative"].values()) for r in cold.regimes))
warmed = hold(build, rows, warm, dynamic=None, backend="eager")
assert [c.step for c in warmed.compiles if c.step] == [], warmed.compiles
assert {{c.step for c in warmed.compiles}} == {{0}}
"""
    )


def test_a_first_length_that_equals_a_dimension_specialises_and_is_no_representative(warm: Warm) -> None:
    warm.run(
        _START
        + """
from cftdiag.forecast.regime_map import collides
class Ducky(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12)
        self.blocks = nn.ModuleList([Plain(), Plain()])
    def forward(self, input_ids, labels, use_cache=False):
        x, table = self.embedding(input_ids), torch.ones(20, 12)
        for block in self.blocks:
            x = block(x, table)
        return type("Output", (), {"loss": x.pow(2).mean()})
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 12)
    def forward(self, x, table):
        return self.linear(x) * table.sum()
rows = [(2, 20, ""), (2, 30, ""), (3, 41, ""), (2, 20, "")]
result = hold(Ducky, rows, dynamic=True)
assert len(result.compiles) == 2, result.compiles
assert result.regimes[0]["bounds"] == ["B >= 2", "S == 20"], result.regimes[0]
assert result.regimes[0]["specialises"]
assert result.regimes[1]["bounds"] == ["B >= 2", "S >= 2"]
"""
    )


_OTHER = pytest.mark.everything(
    "20 s each; one of the six pairs stays, and fixed orders with other arguments in the tests below"
)


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    [
        pytest.param("aot_eager", None, marks=_OTHER),
        ("eager", True),
        pytest.param("aot_eager", True, marks=_OTHER),
        pytest.param("aot_eager", False, marks=_OTHER),
        pytest.param("eager", None, marks=_OTHER),
        pytest.param("eager", False, marks=_OTHER),
    ],
)
def test_random_orders_of_guards_of_many_forms(
    backend: str, dynamic: bool | None, warm: Warm, request: pytest.FixtureRequest
) -> None:
    seeds = 3 if request.config.option.everything else 2
    warm.run(
        _START
        + f"""
for seed in range({seeds}):
    torch._dynamo.config.recompile_limit = 64 if seed else 8
    rows = stream(seed, 40, (1, 2, 3, 5), (1, 7, 8, 12, 15, 16, 24, 30, 31, 32, 45, 48, 64), ("", "padded"))
    result = hold(Toy, rows, backend={backend!r}, dynamic={dynamic})
    assert not result.notes, result.notes
    assert {dynamic} is False or result.counts["probed"] > 5, result.counts
    forms = {{form for r in result.regimes for form in r["bounds"]}}
    if {dynamic} is True:
        assert any("S % 8" in form for form in forms) and any("B*S" in form for form in forms), forms
"""
    )


def test_the_limit_ends_a_fullgraph_run(warm: Warm) -> None:
    warm.run(
        _START
        + """
rows = [(2, n, "") for n in range(20, 40)]
result = hold(Toy, rows, dynamic=False, fullgraph=True)
assert result.limit_hit["raised"] and result.limit_hit["step"] == 9, result.limit_hit
assert result.stopped and result.counts["unvisited"] == 11, (result.stopped, result.counts)
"""
    )


def test_blocks_that_break_are_run_shape_by_shape(warm: Warm) -> None:
    warm.run(
        _START
        + """
rows = stream(1, 25, (2, 3), (16, 20, 24, 31, 33, 48))
result = hold(lambda: Toy(broken=True), rows, dynamic=True)
assert result.notes[0].startswith("every distinct shape was run"), result.notes
assert result.counts["run"] == result.counts["shapes"]
"""
    )


def test_a_guard_on_something_else_is_named_and_the_forecast_holds(warm: Warm) -> None:
    warm.run(
        _START
        + """
class Counting(Block):
    def forward(self, x, scale, mask):
        return super().forward(x, scale, mask) + (1.0 if scale.phase == "early" else 2.0)
class Phase:
    phase = "early"
class Odd(Toy):
    # an object made anew for each call: nothing tells from batch and length what its guards will say
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Counting(12, False) for _ in range(2))
    def forward(self, input_ids, labels, use_cache=False):
        scale = Scale(input_ids.shape[1])
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, scale, None)
        return type("Output", (), {"loss": x.pow(2).mean()})
class Scale:
    def __init__(self, n):
        self.phase = "early" if n < 40 else "late"
    def __rtruediv__(self, other):
        return other / 3
rows = [(2, 20, ""), (2, 33, ""), (2, 48, ""), (2, 33, ""), (2, 52, "")]
result = hold(Odd, rows, exact=False, dynamic=True)
assert result.notes[0].startswith("every distinct shape was run"), result.notes
assert 3 in [c.step for c in result.compiles]
"""
    )


def test_mistakes_are_seen_not_hidden(warm: Warm) -> None:
    warm.run(
        _START
        + """
class Sly(Toy):
    # a threshold between two learnt lengths, on a number that no argument tells
    def forward(self, input_ids, labels, use_cache=False):
        for block in self.blocks:
            block.broken = False
            block.linear.flag = input_ids.shape[1] == 51
        return super().forward(input_ids, labels)
class Flagged(nn.Linear):
    flag = False
    def forward(self, x):
        return super().forward(x) * (2 if self.flag else 1)
def build():
    model = Sly()
    for block in model.blocks:
        block.linear = Flagged(12, 12)
    return model
rows = [(2, n, "") for n in (20, 30, 40, 50, 60, 70)] + [(2, 51, "")] * 9
result, _ = foreseen(build, rows, dynamic=True)
assert result.mistaken and any("do not rely" in note for note in result.notes), (result.notes, result.mistaken)
"""
    )


def test_the_model_is_as_it_was_after_learning(warm: Warm) -> None:
    warm.run(
        _START
        + """
class Growing(Toy):
    # grows with the longest sequence seen, as dynamic rotary embeddings do: learning from long ones must not show
    def __init__(self):
        super().__init__()
        self.longest = 0
        self.seen = []
        self.register_buffer("table", torch.zeros(4))
    def forward(self, input_ids, labels, use_cache=False):
        self.longest = max(self.longest, input_ids.shape[1])
        self.seen.append(input_ids.shape[1])
        self.table += 1
        for block in self.blocks:
            block.limit = self.longest
        return super().forward(input_ids, labels)
torch._dynamo.reset()
with Recorder() as recorder:
    model = compiled(Growing(), recorder, dynamic=True)
    rows = [(2, n, "") for n in (20, 30, 40, 50, 60, 70)]
    result = sweep(stepper(model), shapes_of(rows), recorder, model=model)
real = 1 + result.counts["confirmed"] + (result.counts["run"] - 1)
assert len(model.seen) == real and model.seen[0] == 20, (model.seen, result.counts)
assert model.table.tolist() == [float(real)] * 4
"""
    )
