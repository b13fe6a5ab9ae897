"""What a training command gains by compiling and whether it fits: its last step rehearsed twice, as it is and eager.
Torch-free.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cftdiag.check.runner import Progress
from cftdiag.check.script import Rehearsed, ScriptOptions, rehearse
from cftdiag.errors import CheckError
from cftdiag.passes.messages import ProgressEvent
from cftdiag.payoff.estimate import of_script
from cftdiag.target.devices import device

_UNKNOWN = "what compiling gains is not known: "


def payoff(rehearsed: Rehearsed, options: ScriptOptions, progress: Progress) -> dict[str, Any] | str:
    """``CheckReport.payoff`` of a command whose rehearsal counted its launches, or a sentence that says why it is
    not known.
    """
    spec = None if options.target is None else device(options.target)
    assert spec is not None and options.target is not None
    counted = rehearsed.work
    if counted is None or not counted.compiled.launches:
        return f"{_UNKNOWN}no step after the first ran compiled code alone that was generated for {options.target}"
    progress(ProgressEvent(phase="prove", text="what the step launches without torch.compile"))
    eager = dataclasses.replace(
        options,
        eager=True,
        steps=counted.step,
        ranks=(rehearsed.first.rank,),
        verify=False,
        keep=None,
    )
    try:
        plain = rehearse(eager, lambda event: None)
    except CheckError as error:
        return f"{_UNKNOWN}{error}"
    if plain.work is None or plain.work.step != counted.step:
        said = f", last saying: {plain.first.last_words}" if plain.first.last_words else ""
        return f"{_UNKNOWN}without torch.compile the command did not come to the end of step {counted.step}{said}"
    events = [e for e in rehearsed.run.events if e.kind == "compile" and e.rank == rehearsed.first.rank]
    seconds = sum(e.seconds.get("total", 0.0) + e.seconds.get("backward", 0.0) for e in events)
    return of_script(
        plain.work.eager,
        counted.eager,
        counted.compiled,
        spec,
        options.target,
        graphs=sum(e.counts_as_compile for e in events),
        compile_seconds=seconds,
        world_size=rehearsed.launch.world_size,
        memory={"none": plain.work.memory, "script": counted.memory},
        batches=_batches(rehearsed, counted.step),
    )


def _batches(rehearsed: Rehearsed, step: int) -> list[tuple[int, int]]:
    """(rows, length) of a step's batches on the first rank."""
    own = (s for s in rehearsed.run.steps if (s.rank, s.step) == (rehearsed.first.rank, step))
    return [(shape[0], shape[1]) for one in own for shape in one.shapes]
