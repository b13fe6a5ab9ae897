"""From counted launches to times, gain, memory and break-even: by hand on small numbers."""

from __future__ import annotations

import dataclasses
import io

import pytest

from cftdiag.payoff.estimate import (
    HIDDEN,
    LAYER_OF_MANY,
    SEEN,
    formula,
    largest_batch,
    longest_row,
    memory,
    scopes,
    to_dict,
)
from cftdiag.payoff.shapes import representatives
from cftdiag.report import html, markdown
from cftdiag.report import payoff as section
from cftdiag.report.console import console_for
from cftdiag.subject import resolve
from cftdiag.target.devices import DEVICES
from cftdiag.target.step_work import Measured, Part, SavedAt, WholeRegion
from cftdiag.target.work import Launch, Rates, Work, seconds
from tests.unit import check_samples

H200 = DEVICES["h200"]
GB = 10**9


def moves(name: str, size: int, count: int = 1) -> Launch:
    return Launch(name=name, bytes=size, count=count)


PRODUCT = Launch(name="aten.mm", bytes=GB, flops=2 * 10**12, product=True)
EAGER = Work((PRODUCT, moves("aten.mul", GB, 40)))
FUSED = Work((PRODUCT, moves("triton", GB, 4)))


def saved(rate: int, squares: int = 0) -> tuple[SavedAt, ...]:
    return tuple(
        SavedAt(batch_size=b, length=n, bytes=rate * b * n + squares * b * n * n)
        for b, n in ((1, 2048), (1, 1024), (1, 512), (2, 1024))
    )


def measured(**changed: object) -> Measured:
    block = Part(
        name="Block", count=10, eager=EAGER, compiled=FUSED, saved_eager=saved(100_000),
        saved_compiled=saved(60_000)[:1], graphs=1, compile_seconds=5.0,
    )  # fmt: skip
    loss = Part(
        name="loss", count=1, eager=Work((moves("aten._log_softmax", GB, 20),)),
        compiled=Work((moves("triton_loss", GB, 2),)), saved_eager=saved(0), saved_compiled=saved(0)[:1],
        graphs=1, compile_seconds=1.0,
    )  # fmt: skip
    return dataclasses.replace(
        Measured(
            target="h200",
            batch_size=1,
            length=2048,
            ac="none",
            dtype="bfloat16",
            blocks=(block,),
            loss=loss,
            body=Part(
                name="body", count=1, eager=Work((moves("aten.embedding", GB),)), saved_eager=saved(10)
            ),
            rest=Part(name="rest", count=1, eager=Work((PRODUCT,)), saved_eager=saved(0)),
            wholes=(
                WholeRegion(
                    scope="model",
                    compiled=Work((*FUSED.launches, moves("rest", GB))),
                    blocks=(("Block", 1),),
                    graphs=1,
                    compile_seconds=8.0,
                ),
            ),
            parameters=10**9,
            trained=10**9,
            parameter_bytes=2 * GB,
            trained_bytes=2 * GB,
            block_bytes=GB // 10,
            root_bytes=GB // 2,
            gathered_bytes=2 * GB,
            logits_elements=10**7,
        ),
        **changed,
    )


def test_a_launch_lasts_as_long_as_the_slower_of_memory_and_arithmetic() -> None:
    rates = Rates(bandwidth=0.5, products=0.5, host_us=10.0)
    found = seconds(EAGER, H200, rates)
    bandwidth, peak = H200.dram_gbps * 1e9 * 0.5, H200.bf16_tflops * 1e12 * 0.5
    assert 2e12 / peak > 1e9 / bandwidth
    assert found.products == pytest.approx(2e12 / peak)
    assert found.device == pytest.approx(found.products + 40e9 / bandwidth)
    assert found.host == pytest.approx(41 * 10e-6)
    assert found.total == found.device
    single = Work((dataclasses.replace(PRODUCT, half=False),))
    assert seconds(single, H200, rates).products == pytest.approx(2e12 / (H200.fp32_tflops * 1e12 * 0.5))


def test_equal_launches_are_counted_once() -> None:
    both = Work.of((*EAGER.launches, *EAGER.launches))
    assert len(both.launches) == 2 and both.kernels == 82
    assert EAGER.kernels == 41
    assert (EAGER.bytes_beside, EAGER.products, EAGER.flops) == (40 * GB, 1, 2 * 10**12)
    assert EAGER.times(3).bytes == 3 * EAGER.bytes


def test_every_scope_leaves_the_rest_eager() -> None:
    rows = {row.scope: row for row in scopes(measured(), H200)}
    assert list(rows) == ["none", "block", "loss", "block+loss", "model"]
    eager = 410 + 20 + 1 + 1 + 1  # blocks, loss, body, rest, optimizer
    assert rows["none"].work.kernels == eager
    assert rows["block"].work.kernels == eager - 360
    assert rows["loss"].work.kernels == eager - 18
    assert rows["block+loss"].work.kernels == eager - 378
    # the region that was lowered with one layer has the other nine as well; the loss stays eager
    assert rows["model"].work.kernels == 50 + 1 + 20 + 1 + 1
    assert rows["none"].gain == (1.0, 1.0) and rows["none"].break_even is None
    assert rows["loss"].gain[1] < rows["block"].gain[1] < rows["block+loss"].gain[1]
    for bound in (HIDDEN, SEEN):
        assert rows["block"].seconds[bound].products == pytest.approx(rows["none"].seconds[bound].products)


def test_what_compiling_costs_is_paid_back_step_by_step() -> None:
    rows = {row.scope: row for row in scopes(measured(), H200)}
    block = rows["block"]
    assert block.compile_seconds == pytest.approx(5.0 + 0.7)
    spared = [rows["none"].seconds[b].total - block.seconds[b].total for b in (HIDDEN, SEEN)]
    low, high = block.break_even or (0, 0)
    assert low - 1 < block.compile_seconds / max(spared) <= low
    assert high - 1 < block.compile_seconds / min(spared) <= high
    assert block.compile_range == (block.compile_seconds, block.compile_seconds), "all of it was lowered"
    model = rows["model"]
    assert model.compile_seconds == pytest.approx(8.0 + 9 * 5.0 + 2 * 0.7)
    few, many = (8.0 + 9 * 5.0 * share + 2 * 0.7 for share in LAYER_OF_MANY)
    assert model.compile_range == (pytest.approx(few), pytest.approx(many))
    spared = [rows["none"].seconds[b].total - model.seconds[b].total for b in (HIDDEN, SEEN)]
    low, high = model.break_even or (0, 0)
    assert low - 1 < few / max(spared) <= low and high - 1 < many / min(spared) <= high
    row = {row["scope"]: row for row in to_dict(measured(), H200)["scopes"]}["model"]
    assert section._row(row)[6] == f"{few:.0f}-{many:.0f} s"


def test_nothing_to_gain_is_said() -> None:
    only = Part(
        name="Block",
        count=10,
        eager=Work((PRODUCT,)),
        compiled=Work((PRODUCT,)),
        graphs=1,
        compile_seconds=5.0,
    )
    data = {"payoff": to_dict(measured(blocks=(only,), loss=None, wholes=()), H200)}
    block = data["payoff"]["scopes"][1]
    assert block["gain"][1] == pytest.approx(1.0) and block["break_even_steps"] is None
    out = io.StringIO()
    section.show(console_for(out, 200), data)
    assert "nothing to gain: " in out.getvalue() and "never" in out.getvalue()


def test_saved_bytes_follow_a_formula() -> None:
    found = formula(saved(100_000, squares=3))
    assert found is not None
    assert (found.per_token, found.per_square) == (pytest.approx(100_000), pytest.approx(3))
    assert found.at(3, 700) == 100_000 * 2100 + 3 * 3 * 700**2
    broken = (*saved(100_000)[:3], SavedAt(batch_size=2, length=1024, bytes=1))
    assert formula(broken) is None, "a point that the formula misses is no formula"


def test_memory_is_the_sum_of_what_takes_it() -> None:
    m = measured()
    eager = memory(m, scope="none", batch_size=1, length=2048)
    assert eager is not None
    assert (eager.parameters, eager.gradients, eager.optimizer, eager.gathered) == (2 * GB, 2 * GB, 4 * GB, 0)
    assert eager.saved == 10 * 100_000 * 2048 + 10 * 2048
    compiled = memory(m, scope="block+loss", batch_size=1, length=2048)
    assert compiled is not None and compiled.saved == 10 * 60_000 * 2048 + 10 * 2048
    twice = memory(m, scope="block+loss", batch_size=2, length=2048)
    assert twice is not None and twice.saved == 2 * compiled.saved and twice.loss == 2 * compiled.loss
    sharded = memory(m, scope="block+loss", batch_size=1, length=2048, world_size=4)
    assert sharded is not None
    assert (sharded.parameters, sharded.optimizer, sharded.gathered) == (GB // 2, GB, GB // 5 + GB // 2)


def test_the_largest_batch_is_the_last_that_fits() -> None:
    m = measured()
    rows = largest_batch(m, H200, scope="block+loss")
    assert rows is not None and rows > 1
    peaks = [memory(m, scope="block+loss", batch_size=n, length=2048) for n in (rows, rows + 1)]
    room = H200.total_memory * 0.97
    assert peaks[0] is not None and peaks[1] is not None and peaks[0].peak <= room < peaks[1].peak
    squares = measured(blocks=(dataclasses.replace(m.blocks[0], saved_eager=saved(100_000, squares=3)),))
    # one point of the compiled step tells of more rows as long, and nothing of a mask that grows with the square
    # of the length
    assert largest_batch(squares, H200, scope="block+loss") == rows
    assert largest_batch(squares, H200, scope="block+loss", length=1024) is None
    assert largest_batch(m, H200, scope="block+loss", length=1024) in (2 * rows, 2 * rows + 1)


def test_of_a_configuration_the_longest_row_is_told() -> None:
    m = measured(always_sharded=True, gathered_bytes=GB)
    row = longest_row(m, H200, scope="block+loss")
    assert row is not None
    peaks = [memory(m, scope="block+loss", batch_size=1, length=n) for n in (row, row + 1)]
    room = H200.total_memory * 0.97
    assert peaks[0] is not None and peaks[1] is not None and peaks[0].peak <= room < peaks[1].peak
    assert peaks[0].gathered == GB // 5 + GB // 2, "FSDP2 on one rank gathers, too"
    data = to_dict(m, H200, one_row=True)
    assert data["memory"]["compiled"]["largest_batch"] is None
    assert f"up to a row of {row:,} tokens (max_tokens_per_gpu)" in " ".join(section.sentences(data))
    assert section.scope_rows(data)[3][-1] == f"1 x {row:,}"


def test_each_scope_has_its_memory() -> None:
    whole = WholeRegion(
        scope="model",
        compiled=FUSED,
        blocks=(("Block", 2),),
        graphs=1,
        compile_seconds=1.0,
        saved=saved(130_000)[:1],
    )
    m = measured(wholes=(whole,))

    def kept(scope: str) -> int:
        found = memory(m, scope=scope, batch_size=1, length=2048)
        assert found is not None
        return found.saved

    body, eager, compiled = 10 * 2048, 100_000 * 2048, 60_000 * 2048
    assert kept("none") == 10 * eager + body == kept("loss")
    assert kept("block") == 10 * compiled + body == kept("block+loss")
    # what was lowered with two layers has eight more, and the body is inside of it
    assert kept("model") == 130_000 * 2048 + 8 * compiled
    assert memory(m, scope="model+loss", batch_size=1, length=2048) is None, "it was not counted"
    sharded = memory(m, scope="model", batch_size=1, length=2048, world_size=4)
    assert sharded is not None and sharded.gathered == 2 * GB, "no hook of FSDP2 between the blocks"
    by_scope = {row["scope"]: row for row in to_dict(m, H200)["memory_by_scope"]}
    assert list(by_scope) == ["none", "block", "loss", "block+loss", "model"]
    assert by_scope["block"]["largest_batch"] > by_scope["none"]["largest_batch"]


def test_several_shapes_weigh_as_often_as_they_are_trained() -> None:
    long = measured()
    slow = dataclasses.replace(long.blocks[0], compiled=EAGER)
    short = measured(batch_size=2, length=512, blocks=(slow,), wholes=())
    often = {(1, 2048): 1, (2, 512): 3}
    data = to_dict(long, H200, others=[short], visits=often)
    assert [(one["batch_size"], one["length"], one["visits"]) for one in data["by_shape"]] == [
        (2, 512, 3),
        (1, 2048, 1),
    ]
    gains = {row["scope"]: row["gain"] for row in data["over_all_shapes"]}
    assert set(gains) == {"block", "loss", "block+loss"}
    a, b = ({row.scope: row for row in scopes(m, H200)} for m in (long, short))
    expected = (a["none"].seconds[HIDDEN].total + 3 * b["none"].seconds[HIDDEN].total) / (
        a["block"].seconds[HIDDEN].total + 3 * b["block"].seconds[HIDDEN].total
    )
    assert any(abs(expected - gain) < 1e-9 for gain in gains["block"])
    assert to_dict(long, H200)["by_shape"] == []


def test_the_section_is_one_table_and_its_assumptions() -> None:
    out = io.StringIO()
    section.show(console_for(out, 200), {"payoff": to_dict(measured(), H200, world_size=8)})
    text = out.getvalue()
    assert "Gain on NVIDIA H200: batch 1 x 2048 tokens, bfloat16, 8 ranks (estimated)" in text
    assert "block+loss" in text and "lowest gain: products at 65%" in text and "memory compiled: peak" in text
    assert "peak a rank" in text and "largest batch" in text and " x 2048" in text
    empty = io.StringIO()
    section.show(console_for(empty, 200), {"payoff": None})
    assert empty.getvalue() == ""


def test_every_form_has_the_section() -> None:
    short = measured(batch_size=2, length=512, wholes=())
    data = to_dict(measured(), H200, others=[short], visits={(1, 2048): 1, (2, 512): 3})
    out = io.StringIO()
    section.show(console_for(out, 200), {"payoff": data})
    check = check_samples.viable() | {"payoff": data}
    page, text = html.render(check), markdown.render(check)
    for cell in ("2 x 512", "how often", "block+loss", "gain block", section.scope_rows(data)[1][4]):
        assert cell in out.getvalue() and cell in page and cell in text, cell
    assert '<h2 id="payoff">' in page and "## Gain and memory" in text
    without = check_samples.viable()
    assert "Gain and memory" not in html.render(without) + markdown.render(without)


def test_few_shapes_stand_for_all_and_have_their_tokens() -> None:
    few = [(1, 512, 3), (1, 640, 1), (1, 512, 2)]
    assert representatives(few) == [(1, 512, 5), (1, 640, 1)]
    many = [(1, length, 1) for length in range(100, 1100, 50)]
    found = representatives(many)
    assert len(found) == 4 and found[-1][:2] == (1, 1050), "memory is that of the largest"
    tokens = sum(rows * length * often for rows, length, often in many)
    assert sum(rows * length * often for rows, length, often in found) == pytest.approx(tokens)
    # a group ends with the first shape that fills its share
    assert all(abs(r * n * o - tokens / 4) <= 1050 for r, n, o in found)


def test_a_method_is_applied_for_the_scope_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block needs beside its adapters must not be in a graph of the model."""
    from cftdiag.options import CheckOptions
    from cftdiag.payoff import measure
    from cftdiag.subject import Origin

    asked: list[CheckOptions] = []

    class Enough(Exception):
        pass

    def prepare(origin: Origin, options: CheckOptions, _read: None) -> None:
        asked.append(options)
        raise Enough

    monkeypatch.setattr(measure, "prepare", prepare)
    options = CheckOptions(model="Qwen3-4B", method="lora", transform="trainer.preflight:as_method")
    with pytest.raises(Enough):
        measure.measure(resolve("Qwen3-4B"), options, "h200", ("model+loss",), lambda _text: None)
    counting = measure._Measure(resolve("Qwen3-4B"), options, "h200", H200, lambda _text: None, ())
    with pytest.raises(Enough):
        counting._whole("model+loss")
    assert [(o.compile.scope, o.subject.layers) for o in asked] == [("block", "all"), ("model+loss", "auto")]
