"""`cftdiag check --compile-scope all`: count in a child process, estimate here.

Lowering for a device that is not there replaces parts of torch while it works, so it never runs in a process
that does anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.options import SCOPES, CheckOptions
from cftdiag.passes.messages import Counted, PayoffTask, ProgressEvent, Refused, Send, Unfit
from cftdiag.passes.one_answer import answer
from cftdiag.payoff.estimate import to_dict
from cftdiag.payoff.shapes import Shape, representatives
from cftdiag.subject import resolve
from cftdiag.target.devices import device


def payoff(
    options: CheckOptions,
    *,
    target: str,
    scopes: Sequence[str] = SCOPES,
    shapes: Sequence[tuple[int, int, float]] = (),
    one_row: bool = False,
    progress: Callable[[ProgressEvent], None] = lambda event: None,
) -> dict[str, Any]:
    """What compiling gains and takes for the model of ``options`` on ``target``: ``CheckReport.payoff``. ``shapes``
    are (rows, length, how often) of the batches that are trained; without them one stands for all. ``one_row`` says that a
    batch has one row, and that it is its length that can grow.

    Raises :class:`InputError` for a model or target that this is not told for and :class:`EnvironmentUnfit`
    where the code cannot be generated here.
    """
    spec = device(target)
    if spec is None:
        raise InputError(f"--compile-scope all needs --target with the name of a GPU, not {target}")
    assert options.subject.model is not None
    task = PayoffTask(
        origin=resolve(options.subject.model),
        options=options,
        target=target,
        scopes=tuple(scopes),
        shapes=tuple((rows, length) for rows, length, _ in shapes),
    )
    found = answer(task, "cftdiag.payoff.job:work", Counted, doing="counting the step", progress=progress)
    return to_dict(
        found.measured,
        spec,
        world_size=options.parallel.world_size,
        others=found.others,
        visits={(rows, length): count for rows, length, count in shapes},
        one_row=one_row,
    )


def shapes_of(options: CheckOptions, forecast: Mapping[str, Any] | None) -> list[Shape]:
    """The (rows, length, how often) to count: those of the data that was forecast, else the lengths that were asked
    for; none where one batch stands for all.
    """
    points = (forecast or {}).get("points")
    if points:
        return representatives([(rows, length, visits) for _, rows, length, visits in points])
    lengths = options.subject.lengths or ()
    if len(lengths) < 2 or not resolve(options.subject.model or "").from_config:
        return []
    rows, multiple = options.subject.batch_size or 1, options.subject.pad_to_multiple_of or 1
    return representatives([(rows, -(-length // multiple) * multiple, 1) for length in lengths])


def work(task: PayoffTask, send: Send) -> None:
    """In the child."""
    from cftdiag.passes.settings import process_kept
    from cftdiag.payoff.measure import measure
    from cftdiag.recipe import DepthNotReached
    from cftdiag.target.errors import TargetUnavailable
    from cftdiag.torch_private.dynamo import is_compile_failure

    def progress(text: str) -> None:
        send(ProgressEvent(phase="lower", text=text))

    try:
        with process_kept(task.options.patch.env):
            first, *others = measure(
                task.origin, task.options, task.target, task.scopes, progress, task.shapes
            )
        send(Counted(measured=first, others=tuple(others)))
    except InputError as error:
        send(Refused(message=str(error)))
    except (TargetUnavailable, DepthNotReached, EnvironmentUnfit) as error:
        send(Unfit(message=str(error)))
    except Exception as error:
        if not is_compile_failure(error):
            raise
        send(
            Refused(
                message="what compiling gains is told once every block is captured whole; see the findings"
            )
        )
