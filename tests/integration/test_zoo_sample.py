"""A fixed sample of the zoo: what a check says of a class of transformers is what happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.warm import Warm
from tests.zoo.entries import entries
from tests.zoo.one import hold
from tests.zoo.server import Job, Server

LONGER = pytest.mark.everything("5 to 20 s of a processor each; one class stays in `make test`")


class WarmPredict(Server):
    """Predictions in children of the tests' own warm interpreter, which needs no start."""

    def __init__(self, warm: Warm) -> None:
        super().__init__("predict")
        self._warm = warm

    def run(self, job: Job) -> dict[str, Any]:
        program = """
            import json, sys
            from tests.zoo.predict import work
            print(json.dumps(work(json.loads(sys.argv[1]))))
        """
        said = self._warm.run(program, json.dumps(job)).stdout.splitlines()[-1]
        answer: dict[str, Any] = json.loads(said)
        return answer


@pytest.fixture(scope="module")
def truth() -> Iterator[Server]:
    server = Server("truth")
    yield server
    server.close()


@pytest.mark.parametrize(
    "cls", ["BertForMaskedLM", pytest.param("Wav2Vec2ForAudioFrameClassification", marks=LONGER)]
)
def test_what_is_predicted_happens(cls: str, truth: Server, warm: Warm) -> None:
    [entry] = [e for e in entries() if e.cls == cls]
    row = hold(entry, truth, WarmPredict(warm))
    assert row["status"] == "agrees", [run["differences"] for run in row["runs"]] or row["why"]
