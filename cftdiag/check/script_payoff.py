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
from cftdiag.payoff.estimate import memory_of_script, of_script
from cftdiag.target.devices import device

_UNKNOWN = "what compiling gains is not known: "


def payoff(
    rehearsed: Rehearsed, options: ScriptOptions, progress: Progress
) -> tuple[dict[str, Any] | None, str | None]:
    """(``CheckReport.payoff`` of a command whose rehearsal counted its launches, a sentence that says why none or only its
    memory is known).
    """
    spec = None if options.target is None else device(options.target)
    assert spec is not None and options.target is not None
    counted = rehearsed.work
    no_code = f"no step after the first ran compiled code alone that was generated for {options.target}"
    if counted is None:
        return None, f"{_UNKNOWN}{no_code}"
    memory, target = counted.memory, options.target
    batches = _batches(rehearsed, counted.step)
    world_size = rehearsed.launch.world_size

    def memory_alone(scope: str, why: str) -> tuple[dict[str, Any], str]:
        fits = memory_of_script({scope: memory}, spec, target, world_size=world_size, batches=batches)
        return fits, f"{_UNKNOWN}{why}"

    if not counted.compiled.launches:
        return memory_alone("none", no_code)
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
        return memory_alone("script", str(error))
    if plain.work is None or plain.work.step != counted.step:
        said = f", last saying: {plain.first.last_words}" if plain.first.last_words else ""
        return memory_alone(
            "script",
            f"without torch.compile the command did not come to the end of step {counted.step}{said}",
        )
    events = [e for e in rehearsed.run.events if e.kind == "compile" and e.rank == rehearsed.first.rank]
    seconds = sum(e.seconds.get("total", 0.0) + e.seconds.get("backward", 0.0) for e in events)
    found = of_script(
        plain.work.eager,
        counted.eager,
        counted.compiled,
        spec,
        options.target,
        graphs=sum(e.counts_as_compile for e in events),
        compile_seconds=seconds,
        world_size=world_size,
        memory={"none": plain.work.memory, "script": counted.memory},
        batches=batches,
    )
    return found, None


def _batches(rehearsed: Rehearsed, step: int) -> list[tuple[int, int]]:
    """(rows, length) of a step's batches on the first rank."""
    own = (s for s in rehearsed.run.steps if (s.rank, s.step) == (rehearsed.first.rank, step))
    return [(shape[0], shape[1]) for one in own for shape in one.shapes]
