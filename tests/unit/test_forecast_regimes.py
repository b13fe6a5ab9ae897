"""The regime map against direct evaluation of the guards; representatives, suggestions, the report over
ranks, the figure.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cftdiag.forecast.all_ranks import divergence, forecast_dict, warm_shapes
from cftdiag.forecast.bounds import Condition
from cftdiag.forecast.formulas import translate
from cftdiag.forecast.lengths import Data, DataOptions, RankShapes, Shape, batches, collect
from cftdiag.forecast.padding import suggest
from cftdiag.forecast.rank_forecast import ForecastCompile, RankForecast
from cftdiag.forecast.regime_map import Kind, RegimeMap, Visit, build, collides, is_static
from cftdiag.report.plots import regime_figure, save_plots

SOURCES = {"L['x'].size()[0]": "B", "L['x'].size()[1]": "S"}
KINDS = {0: Kind(id=0, variant="", sizes=("B", "S", "64"))}


class X:
    def __init__(self, batch: int, length: int) -> None:
        self.shape = batch, length

    def size(self) -> tuple[int, int]:
        return self.shape


def passes(guards: list[str], shape: Shape) -> bool:
    """What torch would say: the guard texts evaluated on a value."""
    return all(eval(guard, {"L": {"x": X(shape.batch_size, shape.length)}}) for guard in guards)


def mapped(entries: dict[str, list[str]], shapes: list[Shape]) -> RegimeMap:
    """The map of one call, each shape served by the first graph whose guards hold when evaluated directly."""
    visits = []
    for shape in shapes:
        graph = next((name for name, guards in entries.items() if passes(guards, shape)), None)
        visits.append(Visit(shape=shape, kind=0, cell=(("block", graph),)))
    conditions = {
        ("block", name, 0): Condition(tuple(atom for guard in guards for atom in translate(guard, SOURCES)))
        for name, guards in entries.items()
    }
    return build(visits, conditions, KINDS, dict.fromkeys(entries, shapes[0]))


guard = st.builds(
    lambda form, n, m: form.format(n=n, m=n + m, k=m % 9 + 2),
    st.sampled_from(
        [
            "2 <= L['x'].size()[1]",
            "{n} <= L['x'].size()[1] <= {m}",
            "(L['x'].size()[1] % {k}) == 0",
            "L['x'].size()[1] % {k} != 0",
            "64*L['x'].size()[0]*L['x'].size()[1] < 64*{m}",
            "L['x'].size()[0]*L['x'].size()[1] >= {n}",
            "L['x'].size()[1] == {m}",
            "L['x'].size()[1] != {m}",
            "L['x'].size()[0] == {k}",
            "L['x'].size()[0] < L['x'].size()[1]",
            "((L['x'].size()[1] + {k}) // {k})*{k} <= {m}",
            "L['x'].size()[1] <= {n} or L['x'].size()[0] >= {k}",
        ]
    ),
    st.integers(0, 200),
    st.integers(1, 400),
)
graphs = st.lists(st.lists(guard, min_size=1, max_size=4), min_size=1, max_size=5)
lengths = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 600)), min_size=1, max_size=40, unique=True)


@settings(max_examples=150, deadline=None)
@given(graphs, lengths, lengths)
def test_the_map_is_what_probing_says(
    found: list[list[str]], shapes: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    entries = {f"0/{i}": guards for i, guards in enumerate(found)}
    own = [Shape(b, s, "", i, 0, 1) for i, (b, s) in enumerate(shapes, 1)]
    regimes = mapped(entries, own)
    assert regimes.exact
    by_graph = {dict(r.cell)["block"]: r for r in regimes.regimes}
    assert sum(r.visits for r in regimes.regimes) + len(regimes.eager) == len(own)
    for batch, length in [*shapes, *others]:
        shape = Shape(batch, length)
        holding = [name for name in by_graph if name is not None and passes(entries[name], shape)]
        regime = regimes.of(batch, length)
        assert (None if regime is None else dict(regime.cell)["block"]) == (holding[0] if holding else None)
        # the bounds as written say the same as the map
        from cftdiag.forecast.bounds import holds

        assert [name for name, r in by_graph.items() if holds(r.bounds, batch, length)] == holding
    for regime in regimes.regimes:
        assert regime.covers(*regime.representative)
        batch, length, _ = regime.representative
        assert regime.specialises or not collides(KINDS[0].sizes, batch, length)


def test_representatives_equal_no_other_dimension() -> None:
    assert (
        collides(("B", "S", "64"), 2, 64) and collides(("B", "S", "64"), 64, 7) and collides(("B", "S"), 9, 9)
    )
    assert not collides(("B", "S", "64", "64"), 2, 65) and not collides(("1", "B", "S"), 1, 65)
    assert collides(("S", "2*S", "128"), 2, 64)
    shapes = [Shape(2, 64, "", 1, 0, 9), Shape(2, 70, "", 2, 0, 1), Shape(2, 80, "", 3, 0, 5)]
    found = mapped({"0/0": ["2 <= L['x'].size()[1]"]}, shapes).regimes[0]
    assert found.representative == (2, 80, "") and not found.specialises
    near = mapped({"0/0": ["2 <= L['x'].size()[1]"]}, shapes[:1]).regimes[0]
    assert near.representative == (2, 65, "")
    below = mapped({"0/0": ["L['x'].size()[1] <= 64"]}, shapes[:1]).regimes[0]
    assert below.representative == (2, 63, "") and not below.specialises
    stuck = mapped({"0/0": ["L['x'].size()[1] == 64"]}, shapes[:1]).regimes[0]
    assert stuck.representative == (2, 64, "") and stuck.specialises
    assert is_static(stuck) and not is_static(near)


def test_a_regime_is_warmed_with_the_shape_that_compiled_its_newest_graph() -> None:
    shapes = [Shape(2, 70, "", 1, 0, 1), Shape(2, 80, "", 2, 0, 9), Shape(2, 90, "", 3, 0, 2)]
    visits = [Visit(shape=shape, kind=0, cell=(("a", "0/0"), ("b", "1/0"))) for shape in shapes]
    conditions = {(call, graph, 0): Condition() for call, graph in visits[0].cell}
    triggers = {"0/0": shapes[0], "1/0": shapes[2]}
    assert build(visits, conditions, KINDS, triggers).regimes[0].representative == (2, 90, "")


def test_calls_of_several_kinds_make_joint_regimes_and_thresholds_are_bounds() -> None:
    below, above = (
        Kind(id=0, variant="", domain=Condition(("(S <= 40)",))),
        Kind(id=1, variant="", domain=Condition(("(S >= 41)",))),
    )
    shapes = [Shape(2, 30, "", 1), Shape(2, 50, "", 2), Shape(2, 20, "", 3), Shape(2, 60, "padded", 4)]
    visits = [
        Visit(shape=shapes[0], kind=0, cell=(("full", "0/0"), ("sliding", "0/0"))),
        Visit(shape=shapes[1], kind=1, cell=(("full", "0/0"), ("sliding", "0/1"))),
        Visit(shape=shapes[2], kind=0, cell=(("full", "0/0"), ("sliding", "0/0"))),
        Visit(shape=shapes[3], kind=2, cell=(("full", None), ("sliding", None))),
    ]
    conditions = {
        (call, graph, kind): Condition(("(S >= 2)",))
        for call in ("full", "sliding")
        for graph in ("0/0", "0/1")
        for kind in (0, 1)
    }
    kinds = {0: below, 1: above, 2: Kind(id=2, variant="padded")}
    found = build(visits, conditions, kinds, {"0/0": shapes[0], "0/1": shapes[1]})
    assert [r.bounds for r in found.regimes] == [("2 <= S <= 40",), ("S >= 41",)]
    assert [r.visits for r in found.regimes] == [2, 1]
    assert found.exact and found.eager == (shapes[3],)
    assert found.of(2, 60, "padded") is None and found.of(2, 60, "").id == "r2"  # type: ignore[union-attr]
    assert found.regimes[1].to_dict()["graphs"] == {"full": "0/0", "sliding": "0/1"}


def test_a_map_that_probing_contradicts_says_so() -> None:
    shapes = [Shape(2, 30, "", 1), Shape(2, 50, "", 2)]
    visits = [
        Visit(shape=s, kind=0, cell=(("block", g),)) for s, g in zip(shapes, ("0/0", "0/1"), strict=True)
    ]
    conditions = {
        ("block", "0/0", 0): Condition((), ("IsOdd(L['x'].size()[1])",)),
        ("block", "0/1", 0): Condition(),
    }
    found = build(visits, conditions, KINDS, {"0/0": shapes[0], "0/1": shapes[1]})
    assert not found.exact and found.wrong == 1
    assert found.regimes[0].to_dict()["opaque"] == ["IsOdd(L['x'].size()[1])"]


def test_lookup_of_many_shapes_at_once() -> None:
    found = mapped(
        {"0/0": ["L['x'].size()[1] % 8 == 0"], "0/1": ["L['x'].size()[1] % 8 != 0"]},
        [Shape(1, 8, "", 1), Shape(1, 9, "", 2)],
    )
    length = np.arange(1, 100_001)
    assert (found.lookup(np.ones_like(length), length, "") == (length % 8 != 0)).all()
    assert (found.lookup(np.ones_like(length), length, "padded") == -1).all()


def test_padding_to_eight_is_suggested_where_guards_ask_for_eight() -> None:
    rng = random.Random(0)
    shapes = [Shape(2, n, "", i, 0, 3) for i, n in enumerate(rng.sample(range(100, 2000), 200), 1)]
    found = mapped({"0/0": ["L['x'].size()[1] % 8 == 0"], "0/1": ["L['x'].size()[1] % 8 != 0"]}, shapes)
    best = suggest(found, shapes)[0]
    assert (best.action, best.multiple, best.graphs, best.new_shapes) == ("pad", 8, 1, 0)
    assert 0 < best.extra_tokens < 0.01
    assert best.to_dict()["extra_tokens"] == round(best.extra_tokens, 4)
    limited = suggest(found, [Shape(2, 1001, "", 1)], longest=1001)
    assert not limited or all(s.extra_tokens == 0 for s in limited)


def test_static_lengths_need_a_graph_each_so_buckets_help_and_are_counted() -> None:
    shapes = [Shape(1, n, "", i) for i, n in enumerate(range(100, 180, 4), 1)]
    found = mapped({f"0/{i}": [f"L['x'].size()[1] == {s.length}"] for i, s in enumerate(shapes)}, shapes)
    suggestions = suggest(found, shapes)
    assert suggestions and [s.graphs for s in suggestions] == sorted(s.graphs for s in suggestions)
    assert suggestions[0].graphs == 1
    for s in suggestions:
        if s.action == "bucket":
            assert s.graphs <= len(s.buckets) and max(s.buckets) >= 176
    assert suggest(RegimeMap(regimes=()), []) == []


# ---- over ranks ----


def swept(compiles: list[tuple[int, float]]) -> RankForecast:
    shapes = [Shape(2, 30, "", 1, 0, 4), Shape(1, 40, "padded", 2, 0, 1)]
    found = mapped({"0/0": ["L['x'].size()[1] >= 2"]}, shapes[:1]).to_dict()
    return RankForecast(
        compiles=tuple(
            ForecastCompile(
                compile_id=f"0/{i}",
                step=step,
                microstep=0,
                batch_size=2,
                length=30,
                regime="r1",
                block="b",
                seconds=seconds,
                recompile=i > 0,
            )
            for i, (step, seconds) in enumerate(compiles)
        ),
        regimes=tuple(found["regimes"]),
        exact=found["exact"],
        eager=found["eager"],
        points=(("r1", 2, 30, 4), (None, 1, 40, 1)),
        notes=("swept",),
    )


def data(world: int) -> Data:
    ranks, steps = collect(batches([8, 8, 9, 7, 7, 7], DataOptions(path="d", world_size=world)), world)
    return Data(
        path="d", samples=6, tokens=46, longest=9, steps=steps, over_long=0, ranks=ranks, notes=("read",)
    )


def test_forecast_over_ranks_tells_where_they_diverge() -> None:
    found = forecast_dict(
        data(3),
        {0: swept([(1, 10.0), (5, 3.0)]), 2: swept([(1, 11.0), (7, 4.0), (7, 1.0)])},
        causes={"0/1": "seq_len"},
        note="n",
    )
    assert [r["ranks"] for r in found["ranks"]] == [[0, 1], [2]]
    assert found["divergence"] == {
        "count": 2,
        "seconds": 8.0,
        "steps": [{"step": 5, "ranks": [0, 1], "seconds": 3.0}, {"step": 7, "ranks": [2], "seconds": 5.0}],
    }
    assert [(s["step"], s["cause"]) for s in found["steps"]] == [(1, None), (5, "seq_len")]
    assert found["notes"] == ["read", "swept"] and found["compiles"] == 2 and found["recompiles"] == 1
    assert warm_shapes(found) == [Shape(2, 30, "")]
    assert divergence({0: [0]}, {0: swept([(1, 1.0), (3, 2.0)])}) == {"count": 0, "seconds": 0, "steps": []}


def test_figure(tmp_path: Path) -> None:
    found = forecast_dict(data(1), {0: swept([(1, 10.0)])})
    paths = save_plots(found, tmp_path / "plots")
    assert [p.name for p in paths] == ["regimes.png", "regimes.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG") and all(p.stat().st_size > 5000 for p in paths)
    figure = regime_figure({**found, "limit_hit": {"step": 9}})
    assert figure.axes[0].get_title() == "1 compile in 1 regime; recompile limit hit at step 9"
    texts = [t.get_text() for t in figure.legends[0].get_texts()]
    assert texts == ["r1: S >= 2 - 4x", "no graph: eager or not foreseen", "warm with this"]
    with pytest.raises(ValueError, match="no regime map"):
        regime_figure({"compiles": 3})
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write plots"):
        save_plots(found, tmp_path / "file")


def _map(bounds: dict[str, list[str]], points: list[list[object]]) -> Any:
    one = swept([(1, 1.0)]).regimes[0]
    regimes = [{**one, "id": name, "bounds": own} for name, own in bounds.items()]
    return regime_figure({"points": points, "regimes": regimes, "compiles": 2, "limit_hit": None})


def test_shapes_of_one_batch_size_stand_at_one_height_on_their_areas() -> None:
    figure = _map(
        {"r1": ["B*S < 1000"], "r2": ["B*S >= 1000"]},
        [["r1", 2, 30, 4], ["r2", 2, 700, 4], ["r2", 1, 1500, 1]],
    )
    axes = figure.axes[0]
    first, second = (c.get_offsets() for c in axes.collections if c.get_label().startswith(("r1", "r2")))
    at_two = float(axes.get_yticks()[[t.get_text() for t in axes.get_yticklabels()].index("2")])
    assert [float(y) for _, y in first] == [at_two] and at_two in [float(y) for _, y in second]
    areas = [c for c in axes.collections if c.get_alpha() == 0.18]
    spans = sorted(
        p.get_extents().x1 for c in areas for p in c.get_paths() if p.get_extents().y0 > at_two - 0.5
    )
    assert any(495 <= end <= 505 for end in spans), "the bound B*S < 1000 ends at S = 500 for B = 2"


def test_regimes_that_only_a_remainder_parts_have_no_area_and_one_shape_of_two_stands_twice() -> None:
    figure = _map({"r1": ["S % 8 == 0"], "r2": ["S % 8 != 0"]}, [["r1", 2, 32, 1], ["r2", 2, 32, 1]])
    axes = figure.axes[0]
    assert [c for c in axes.collections if c.get_alpha() == 0.18] == []
    heights = {
        float(c.get_offsets()[0][1]) for c in axes.collections if c.get_label().startswith(("r1", "r2"))
    }
    assert len(heights) == 2


def test_many_regimes_keep_the_legend_short() -> None:
    one = swept([(1, 1.0)]).regimes[0]
    regimes = [{**one, "id": f"r{i}"} for i in range(40)]
    points = [[f"r{i}", b, 10 * i + 2, 1] for i, b in itertools.product(range(40), range(1, 3))]
    figure = regime_figure({"points": points, "regimes": regimes, "compiles": 40, "limit_hit": None})
    assert len(figure.legends[0].get_texts()) == 13
    own = [{**one, "id": f"r{i}", "bounds": ["B >= 2", f"S % {i} == 0"]} for i in (8, 16)]
    figure = regime_figure(
        {"points": [["r8", 2, 8, 1], ["r16", 2, 32, 1]], "regimes": own, "compiles": 2, "limit_hit": None}
    )
    assert [t.get_text().split(" - ")[0] for t in figure.legends[0].get_texts()][:2] == [
        "r8: S % 8 == 0",
        "r16: S % 16 == 0",
    ]


def test_nothing_here_imports_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import sys
        import cftdiag.forecast.regime_map, cftdiag.forecast.padding, cftdiag.forecast.all_ranks, cftdiag.report.plots
        assert "torch" not in sys.modules and "sympy" not in sys.modules
        """
    )


def test_shapes_of_a_rank_keep_their_order() -> None:
    assert RankShapes(0, (Shape(1, 2), Shape(1, 1))).to_list()[0][:2] == [1, 2]
