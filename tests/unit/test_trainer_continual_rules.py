"""The forgetting table: transfer and spread are what their names say; methods and tasks are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainer import patterns
from trainer.config import TrainConfig
from trainer.continual.directions import cut
from trainer.continual.figures import figures, render, table
from trainer.continual.methods import METHODS, Orthogonal, OrthogonalToInputs, directions, parse
from trainer.continual.phases import Outcome, Phase, Score
from trainer.methods.lora import LoRALinear


def _scores(**accuracies: float) -> dict[str, Score]:
    return {task: Score(loss=1.0, accuracy=accuracy) for task, accuracy in accuracies.items()}


def _outcome(seed: int = 0, method: str = "full", end: float = 0.5) -> Outcome:
    return Outcome(
        method=method,
        seed=seed,
        untrained=_scores(base=0.0, A=0.1, B=0.2),
        phases=[
            Phase(task="base", steps=300, learned=True, after=_scores(base=1.0, A=0.3, B=0.0)),
            Phase(task="A", steps=20, learned=True, after=_scores(base=0.6, A=0.9, B=0.3)),
            Phase(task="B", steps=40, learned=seed == 0, after=_scores(base=0.4, A=end, B=1.0)),
        ],
    )


def test_transfer_is_what_lopez_paz_and_ranzato_call_so() -> None:
    found = figures(_outcome())
    assert found["average"] == pytest.approx((0.4 + 0.5 + 1.0) / 3)
    assert found["backward"] == pytest.approx(((0.4 - 1.0) + (0.5 - 0.9)) / 2), (
        "forgotten since each was learned"
    )
    assert found["forward"] == pytest.approx(((0.3 - 0.1) + (0.3 - 0.2)) / 2), "known before it is trained"
    assert found["a task later"] == pytest.approx((0.6 + 0.5) / 2)
    assert (found["steps a task"], found["A at the end"]) == (30, 0.5)


def test_spread_is_over_seeds_and_what_was_not_learned_is_counted() -> None:
    [row, other] = table([_outcome(0), _outcome(1, end=0.7), _outcome(0, method="replay")])
    assert row["A at the end"] == (pytest.approx(0.6), pytest.approx(0.02**0.5)) and row["learned"] == (3, 4)
    assert other["method"] == "replay" and other["A at the end"] == (0.5, 0.0)
    head, _, first, _ = render([row, other]).splitlines()
    assert head.startswith(
        "| method | learned | average | backward | forward | a task later | base at the end |"
    )
    assert first.startswith(
        "| full | 3 of 4 | 0.67 +- 0.05 | -0.45 +- 0.07 | 0.15 +- 0.00 | 0.60 +- 0.07 | 0.40 +- 0.00 | 0.60 +- 0.14 |"
    )
    assert first.endswith("| 30 +- 0 |")


@pytest.mark.parametrize("text", METHODS)
def test_every_method_is_a_configuration_for_each_task(text: str) -> None:
    method = parse(text)
    assert [TrainConfig(demo=True, **method.options(k, 3)).method for k in (1, 2, 3)]


def test_progressive_shares_follow_the_tasks() -> None:
    def shares(text: str) -> list[Any]:
        return [TrainConfig(demo=True, **parse(text).options(k, 3)).unfreeze_ratio for k in (1, 2, 3)]

    assert shares("osft progressive beside=none") == pytest.approx([0.7, 0.5, 0.3])
    assert shares("osft 0.25") == [0.25] * 3
    assert parse("lora 8 lr=4e-3").lr == 4e-3


@pytest.mark.parametrize(
    "text",
    ["", "ful", "full 0.5", "osft", "osft 2", "osft x", "lora 0", "lora 0.5", "lora 8 beside=none", "full lr=0", "osft 0.5 beside=x",
     "lora 8 keep=0.5", "gpm 8 keep=1"],
)  # fmt: skip
def test_what_is_no_method_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no method .*one of full, replay, osft SHARE"):
        parse(text)


def test_adapters_read_nothing_of_what_earlier_ones_read() -> None:
    def adapter() -> nn.Module:
        layer = LoRALinear(nn.Linear(8, 5, bias=False), rank=2, scale=1.0)
        nn.init.normal_(layer.A)
        return nn.ModuleDict({"q": layer})

    orthogonal, earlier = Orthogonal(), []
    for task in range(3):
        model = adapter()
        before = model["q"].A.detach().clone()
        orthogonal.hold(model)
        rows = model["q"].A.detach()
        assert (task == 0) == torch.equal(rows, before)
        for other in earlier:
            assert (rows @ other.T).abs().max() < 1e-5
        assert rows.norm() > 0.1
        earlier.append(rows.clone())
        orthogonal.add(model)


def test_adapters_read_nothing_of_earlier_inputs() -> None:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(8, 8))[0].T

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = LoRALinear(nn.Linear(8, 5, bias=False), rank=2, scale=1.0)
            nn.init.normal_(self.q.A)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q(x)  # type: ignore[no-any-return]

    constraint = OrthogonalToInputs(0.99)
    first, second = torch.randn(40, 3) @ basis[:3], torch.randn(40, 2) @ basis[3:5]
    noise = 1e-3 * torch.randn(40, 8)
    for inputs, reads in ((first, [3, 4, 5, 6, 7]), (second, [5, 6, 7])):
        model = Model()
        constraint.begin(model, [{"x": inputs[None] + noise[None]}])
        constraint.hold(model)
        a = model.q.A.detach()
        assert model.training and a.norm() > 0.1
        assert (a @ inputs.T).norm() < 0.02 * a.norm() * inputs.norm()
        torch.testing.assert_close(a @ basis[reads].T @ basis[reads], a, rtol=0.02, atol=0.02)


def test_directions_are_as_many_as_hold_the_energy() -> None:
    square = torch.diag(torch.tensor([98.0, 1.5, 0.4, 0.1], dtype=torch.float64))
    none = torch.zeros(0, 4, dtype=torch.float64)
    found = directions(square, none, 0.99)
    torch.testing.assert_close(found.abs(), torch.eye(4, dtype=torch.float64)[:2])
    assert len(directions(square, found, 0.99)) == 0
    assert [len(directions(square, none, keep)) for keep in (0.5, 0.98, 0.996, 0.9999)] == [1, 1, 3, 4]
    torch.testing.assert_close(
        directions(square, found[:1], 0.99).abs(), torch.eye(4, dtype=torch.float64)[1:2]
    )


def test_what_is_cut_are_the_smallest_or_the_largest_directions() -> None:
    u, v = torch.linalg.qr(torch.randn(5, 4))[0], torch.linalg.qr(torch.randn(4, 4))[0]
    for low, left in ((True, [4.0, 3.0, 2.0, 0.0]), (False, [2.0, 1.0, 0.0, 0.0])):
        weight = u @ torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])) @ v
        cut(weight, 0.25 if low else 0.5, low=low)
        torch.testing.assert_close(torch.linalg.svdvals(weight), torch.tensor(left), rtol=1e-4, atol=1e-4)


def test_the_two_tasks_contradict_each_other_and_the_files_hold_their_answers(tmp_path: Path) -> None:
    red, blue = patterns.permutation(0), patterns.permutation(1)
    assert sorted(red(patterns.LETTERS)) == sorted(blue(patterns.LETTERS)) == list(patterns.LETTERS)
    assert (
        sum(a == b for a, b in zip(red(patterns.LETTERS), blue(patterns.LETTERS), strict=True))
        < len(patterns.LETTERS) // 2
    )
    path = patterns.write(
        tmp_path / "t.jsonl", {"copy": patterns.BASE["copy"], "next": patterns.BASE["next"]}, count=20, seed=0
    )
    for i, line in enumerate(path.read_text().splitlines()):
        question, answer = (turn["content"] for turn in json.loads(line)["messages"])
        word, text = question.split(" ")
        assert word == ("copy", "next")[i % 2] and len(text) == patterns.LENGTH
        assert answer == (text if word == "copy" else "".join(chr((ord(c) - 97 + 1) % 16 + 97) for c in text))
