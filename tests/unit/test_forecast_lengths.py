"""Data files become shapes per rank, in the order in which training meets them; wrong ones are named by line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.forecast.data_files import LONGEST, read_lengths
from cftdiag.forecast.lengths import (
    DataOptions,
    RankShapes,
    Shape,
    batches,
    collect,
    distinct_ranks,
    from_steps,
    read_data,
    shuffled,
)
from cftdiag.recipe import packing


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_formats_agree(tmp_path: Path) -> None:
    lengths = [5, 17, 3]
    text = write(tmp_path / "a.txt", ["5", "", "17", " 3 "])
    ids = write(tmp_path / "b.jsonl", [json.dumps({"input_ids": [1] * n, "labels": []}) for n in lengths])
    lens = write(tmp_path / "c.jsonl", ['{"len": 5}', '{"length": 17}', "", '{"len": 3}'])
    for path in (text, ids, lens):
        assert list(read_lengths(path)) == lengths


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "no samples"),
        (["", "  "], "no samples"),
        (["5", "-3"], "line 2: length -3 is not a positive"),
        (["5", "0"], "line 2: length 0"),
        (["5", "", "x7"], "line 3: 'x7' is not a length"),
        (["5", "7.5"], "line 2"),
        ([str(LONGEST + 1)], "line 1: length 10000001 is beyond"),
        (["9" * 5000], "line 1"),
        (['{"len": 5}', "{nope"], "line 2: is not JSON"),
        (['{"len": 5}', "[1]"], "line 2: is a JSON list"),
        (['{"len": 5}', '{"len": -1}'], "line 2: length -1"),
        (['{"len": 5}', '{"len": 2.5}'], "line 2: length 2.5 is not a whole number"),
        (['{"len": true}'], "line 1: length True"),
        (['{"len": 5}', '{"messages": []}'], "line 2: has neither input_ids nor len; tokenize"),
        (['{"input_ids": "abc"}'], "line 1: input_ids is a str"),
        (['{"input_ids": []}'], "line 1: length 0"),
        (['{"len": ' + "[" * 100_000], "line 1: is not JSON"),
        (["[5, 6]"], "is a JSON array"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, lines: list[str], words: str) -> None:
    path = write(tmp_path / "data", lines)
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value) and "data" in str(caught.value)


def test_files_that_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_lengths(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\x80\x81\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read_lengths(tmp_path / "binary")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="directory without"):
        read_lengths(tmp_path / "empty")


def test_directory_of_jsonl_reads_files_in_order(tmp_path: Path) -> None:
    write(tmp_path / "2.jsonl", ['{"len": 2}'])
    write(tmp_path / "1.jsonl", ['{"len": 1}', '{"len": 7}'])
    assert list(read_lengths(tmp_path)) == [1, 7, 2]


def test_saved_dataset(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.ipc as ipc
    import pyarrow.parquet as parquet

    table = pa.table({"input_ids": [[1] * 4, [2] * 9], "text": ["a", "b"]})
    saved = tmp_path / "dict" / "train"
    saved.mkdir(parents=True)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with ipc.new_stream(str(saved / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    assert list(read_lengths(saved)) == list(read_lengths(tmp_path / "dict")) == [4, 9]
    (tmp_path / "hub" / "data").mkdir(parents=True)
    parquet.write_table(pa.table({"len": [8, 0]}), tmp_path / "hub" / "data" / "train.parquet")
    with pytest.raises(InputError, match="row 2: length 0"):
        read_lengths(tmp_path / "hub")
    (saved / "state.json").write_text(
        '{"_data_files": [{"filename": "x"}], "_indices_files": [{"filename": "i"}]}'
    )
    with pytest.raises(InputError, match="flatten_indices"):
        read_lengths(saved)


def test_saved_dataset_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "x.arrow"}]}')
    with pytest.raises(EnvironmentUnfit, match="pip install pyarrow"):
        read_lengths(tmp_path)


def options(**more: object) -> DataOptions:
    return DataOptions(path="data", **more)  # type: ignore[arg-type]


def test_rows_are_dealt_to_ranks_and_the_last_batch_is_partial() -> None:
    lengths = [5, 7, 3, 3, 9, 1, 2]
    assert list(batches(lengths, options(batch_size=2, world_size=2))) == [
        (1, 0, [(2, 7, "padded"), (2, 3, "")]),
        (2, 0, [(2, 9, "padded"), (1, 2, "")]),
    ]
    assert len(list(batches(lengths, options(batch_size=2, world_size=2, drop_last=True)))) == 1
    assert list(batches([4], options(batch_size=2, world_size=2))) == [(1, 0, [(1, 4, ""), (1, 4, "")])]


def test_padding_to_a_multiple_needs_a_mask_unless_the_collator_gives_none() -> None:
    assert next(batches([13], options(pad_to_multiple_of=8))) == (1, 0, [(1, 16, "padded")])
    assert next(batches([16], options(pad_to_multiple_of=8))) == (1, 0, [(1, 16, "")])
    assert next(batches([13], options(pad_to_multiple_of=8, attention_mask=False))) == (1, 0, [(1, 16, "")])
    assert next(batches([99], options(pad_to_multiple_of=8, max_positions=100))) == (
        1,
        0,
        [(1, 100, "padded")],
    )


def test_token_budget_counts_padding() -> None:
    found = list(batches([10, 10, 30, 5, 5, 5], options(max_tokens_per_gpu=40)))
    assert [rows for _, _, rows in found] == [[(2, 10, "")], [(1, 30, "")], [(3, 5, "")]]
    assert all(rows[0][0] * rows[0][1] <= 40 for _, _, rows in found)
    # a batch may fill the budget to the last token
    full = list(batches([20, 20, 20], options(max_tokens_per_gpu=40)))
    assert [rows for _, _, rows in full] == [[(2, 20, "")], [(1, 20, "")]]
    capped = list(batches([10, 10, 10], options(max_tokens_per_gpu=40, batch_size=2, world_size=2)))
    assert capped == [(1, 0, [(2, 10, ""), (1, 10, "")])]


@pytest.mark.parametrize("world", [1, 3])
def test_packing_and_order_are_the_trainers(world: int) -> None:
    rng = random.Random(5)
    lengths = [rng.randrange(1, 900) for _ in range(300)]
    samples = [packing.Sample(length=n, loss_tokens=1, line=i) for i, n in enumerate(lengths, 1)]
    shape = packing.Shape(world=world, capacity=1024, multiple=16)
    trained = [
        (number, m, tuple(row.length for row in rows))
        for number, step in enumerate(packing.steps(samples, shape, batch_size=24, seed=7, epochs=2), 1)
        for m, rows in enumerate(step.rows)
    ]
    own = options(
        packed=True,
        max_tokens_per_gpu=1024,
        pad_to_multiple_of=16,
        batch_size=24,
        shuffle_seed=7,
        world_size=world,
        epochs=2,
    )
    found = [(step, m, tuple(length for _, length, _ in rows)) for step, m, rows in batches(lengths, own)]
    assert found == trained
    ranks, steps = from_steps(packing.steps(samples, shape, batch_size=24, seed=7, epochs=2), world)
    assert steps == trained[-1][0]
    assert [[s.length for s in r.shapes] for r in ranks] == [
        [s.length for s in r.shapes] for r in collect(batches(lengths, own), world)[0]
    ]


def test_packed_without_a_batch_size_takes_what_fits() -> None:
    found = list(
        batches([600, 300, 500, 1000], options(packed=True, max_tokens_per_gpu=1000, pad_to_multiple_of=8))
    )
    assert found == [(1, 0, [(1, 904, "packed")]), (2, 0, [(1, 504, "packed")]), (3, 0, [(1, 1000, "")])]


def test_shuffling_is_the_trainers_in_four_bytes_a_sample() -> None:
    order = shuffled(1000, 3, 1)
    assert order is not None and order.itemsize == 4
    assert list(order) == list(packing.epoch_order(1000, seed=3, epoch=1))
    assert shuffled(5, None, 0) is None


def test_distinct_shapes_keep_the_first_step_and_count_visits(tmp_path: Path) -> None:
    data = read_data(DataOptions(path=write(tmp_path / "d", ["8", "9", "8", "8", "10"]), epochs=2))
    assert data.steps == 10
    assert data.ranks[0].shapes == (
        Shape(1, 8, "", 1, 0, 6),
        Shape(1, 9, "", 2, 0, 2),
        Shape(1, 10, "", 5, 0, 2),
    )
    again = RankShapes.from_list(0, json.loads(json.dumps(data.ranks[0].to_list())))
    assert again == data.ranks[0]
    assert data.to_dict()["ranks"] == [{"rank": 0, "shapes": 3, "forwards": 10}]


def test_ranks_with_the_same_shapes_are_swept_once(tmp_path: Path) -> None:
    data = read_data(DataOptions(path=write(tmp_path / "d", ["8", "8", "9", "8", "8", "9"]), world_size=3))
    assert distinct_ranks(data) == {0: [0, 1], 2: [2]}


def test_over_long_samples_follow_the_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "d", ["8", "90", "70", "64"])
    with pytest.raises(InputError) as caught:
        read_data(DataOptions(path=path, max_positions=64))
    assert str(caught.value) == (
        "d: 2 of 4 samples are longer than the 64 positions of the model (sample 2 has 90); shorten them, or choose --over-long drop or truncate"
    )
    cut = read_data(DataOptions(path=path, max_positions=64, over_long="truncate"))
    assert (cut.longest, cut.over_long, cut.samples) == (64, 2, 4) and "truncated" in cut.notes[0]
    dropped = read_data(DataOptions(path=path, max_positions=64, over_long="drop"))
    assert [s.length for s in dropped.ranks[0].shapes] == [8, 64]
    with pytest.raises(InputError, match="nothing is left"):
        read_data(DataOptions(path=path, max_positions=4, over_long="drop"))


def test_options_are_validated() -> None:
    for wrong in (
        {"batch_size": 0},
        {"world_size": True},
        {"epochs": -1},
        {"over_long": "cut"},
        {"packed": True},
    ):
        with pytest.raises(InputError):
            options(**wrong)


def test_drop_last_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave out --drop-last"):
        read_data(DataOptions(path=write(tmp_path / "d", ["8"]), batch_size=2, drop_last=True))


@pytest.mark.parametrize(
    "millions",
    [2, pytest.param(10, marks=pytest.mark.everything("two million show what a sample costs"))],
)
def test_millions_of_lengths_stay_in_bounded_memory(tmp_path: Path, run_python, millions: int) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "big"
    line = "".join(f"{100 + i % 3000}\n" for i in range(10_000))
    with open(path, "w") as file:
        for _ in range(100 * millions):
            file.write(line)
    done = run_python(
        """
        import resource, sys
        from cftdiag.forecast.lengths import DataOptions, read_data
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        data = read_data(DataOptions(path=sys.argv[1], batch_size=64))
        print(data.samples)
        assert "torch" not in sys.modules
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        str(path),
    )
    samples, kilobytes = map(int, done.stdout.split())
    assert samples == millions * 1_000_000
    # four bytes a length, what growing an array costs, and what is read at a time
    assert kilobytes < 15_000 * millions + 5_000
