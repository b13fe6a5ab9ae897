"""Tasks and messages of passes: what crosses a process border comes back as it was, and says why a child
died.
"""

from __future__ import annotations

import dataclasses
import json
import typing

import pytest

from cftdiag.events import Code, Event, Frame, Guard, Reason
from cftdiag.forecast.lengths import PADDED, Shape
from cftdiag.forecast.rank_forecast import ForecastCompile, RankForecast
from cftdiag.options import CheckOptions
from cftdiag.passes import messages
from cftdiag.passes.launch import last_words
from cftdiag.passes.messages import (
    Assumption,
    Counted,
    Done,
    Forecast,
    KernelsTask,
    Lowering,
    Observed,
    PassTask,
    PayoffTask,
    Program,
    ProgramBlock,
    ProgressEvent,
    Raised,
    Refused,
    Result,
    StepDone,
    StepShape,
    SweepTask,
    Unfit,
    decode,
    encode,
)
from cftdiag.subject import Origin
from cftdiag.target.step_work import Measured, Part, SavedAt, WholeRegion
from cftdiag.target.work import Launch, Work

FRAME = Frame(file="m.py", line=3, function="forward", code="return x")
GUARD = Guard(expression="L['x'].size()[1] == 5", source="L['x'].size()[1]", expected="5", actual="6")
EVENT = Event(
    kind="recompile",
    time=1.5,
    step=2,
    compile_id="0/1",
    block="layers.0",
    code=Code(qualname="f", file="m.py", line=1),
    reasons=(Reason(entry="0/0", guard=GUARD, closest=True),),
    guard=GUARD,
    stack=(FRAME,),
    seconds={"total": 0.5},
)
ORIGIN = Origin(type="config", name="m", model_type="llama", config={"num_hidden_layers": 2})
OPTIONS = CheckOptions(model="m", lengths=(8, 16), torch_config={"torch._dynamo.config.verbose": True})
SWEEP = SweepTask(rank=1, shapes=(Shape(2, 8, PADDED, 1, 0, 4),), warm=(Shape(2, 8),))
WORK = Work((Launch(name="aten.mm", bytes=8, flops=16, product=True, count=3),))
PART = Part(
    name="Block",
    count=4,
    eager=WORK,
    compiled=WORK,
    saved_eager=(SavedAt(batch_size=2, length=8, bytes=64),),
)
EXAMPLES = [
    PassTask(mode="sweep", origin=ORIGIN, options=OPTIONS, fullgraph=True, sweep=SWEEP),
    PassTask(mode="numerics", origin=ORIGIN, options=OPTIONS, compare="reference.pt"),
    KernelsTask(origin=ORIGIN, options=OPTIONS, target="h200", block="Block"),
    PayoffTask(origin=ORIGIN, options=OPTIONS, target="h200", scopes=("none", "block")),
    Counted(
        measured=Measured(
            target="h200",
            batch_size=2,
            length=8,
            ac="none",
            dtype="bfloat16",
            blocks=(PART,),
            loss=None,
            body=PART,
            rest=PART,
            wholes=(
                WholeRegion(
                    scope="model", compiled=WORK, blocks=(("Block", 1),), graphs=1, compile_seconds=0.5
                ),
            ),
            refused=(("model+loss", "why"),),
        )
    ),
    ProgressEvent(phase="step", mode="collect", step=1, of=4, length=8),
    Observed(event=EVENT),
    Program(
        mode="fullgraph",
        depth="joint",
        weightless=True,
        parameters=10,
        model_class="Model",
        model_type=None,
        compile_kwargs={"dynamic": True},
        wrap=False,
        blocks=(ProgramBlock(fqn="layers.0", cls="Block", kind="Block", index=0),),
        steps=(StepShape(step=1, batch_size=2, length=8),),
        untouched=("layers.*",),
        limit=8,
        config_sha="abc",
        build_seconds=0.1,
    ),
    StepDone(step=1, batch_size=2, length=None, seconds=0.25),
    Result(
        graphs={"layers.0": ("0/0", "0/1")},
        fullgraph={"layers.0": True},
        calls={"layers.0": 3},
        trained=("layers.0.weight",),
        undetermined=(Assumption(meaning="a value was assumed", what="read"),),
        check={"loss": 1.0},
    ),
    Forecast(
        rank=0,
        swept=RankForecast(
            compiles=(ForecastCompile(compile_id="0/0", step=1, microstep=0, batch_size=2, length=8),),
            points=((None, 2, 8, 1),),
        ),
    ),
    Lowering(report={"schema": "cftdiag.kernels/1"}),
    Raised(error="RuntimeError", message="no", compile=False, where=FRAME, step=2),
    Refused(message="no such model"),
    Unfit(message="no memory"),
    Done(),
]


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: type(value).__name__)
def test_what_crosses_the_border_comes_back_as_it_was(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_every_task_and_message_is_tried_above():
    known = {*typing.get_args(messages.Task), *typing.get_args(messages.Message)}
    assert {type(value) for value in EXAMPLES} == known
    assert all(cls.__dataclass_params__.frozen for cls in known)


@pytest.mark.parametrize("data", [{}, {"type": "Prayer"}, {"type": "str"}])
def test_what_nobody_wrote_is_refused(data):
    with pytest.raises(ValueError, match="no message of a pass"):
        decode(data)


def test_a_message_keeps_its_optional_parts_empty():
    bare = dataclasses.replace(EXAMPLES[-4], where=None)
    assert decode(encode(bare)) == bare


def test_the_messages_import_no_torch():
    import subprocess
    import sys

    code = "import sys, cftdiag.passes.messages, cftdiag.passes.launch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_child_that_died_is_told_by_its_exception_not_by_torchs_advice():
    log = """Traceback (most recent call last):
  File "x.py", line 1, in f
torch._dynamo.exc.BackendCompilerFailed: backend='compile_graph' raised:
RuntimeError: Found no NVIDIA driver on your system.

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace
"""
    assert last_words(log) == "RuntimeError: Found no NVIDIA driver on your system."
    assert last_words("Segmentation fault\n\n") == "Segmentation fault" and last_words("") == ""
