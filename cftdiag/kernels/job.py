"""`cftdiag kernels`: describe in a child process what Inductor generates.

Lowering for a device that is not there replaces parts of torch while it works, so it never runs in a process
that does anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.options import CheckOptions
from cftdiag.passes.messages import KernelsTask, Lowering, ProgressEvent, Refused, Send, Unfit
from cftdiag.passes.one_answer import answer
from cftdiag.subject import resolve

#: One length is enough to see the kernels; two show what changes between them.
DEFAULT_LENGTHS = (512,)


def run(task: KernelsTask, progress: Callable[[str], None] = lambda text: None) -> Mapping[str, Any]:
    """Describe in a child process.

    Raises :class:`InputError` or :class:`EnvironmentUnfit`. The child and its scratch folder are gone when
    this returns, whatever happened.
    """
    found = answer(
        task,
        "cftdiag.kernels.job:work",
        Lowering,
        doing="lowering",
        progress=lambda event: progress(event.text),
    )
    return found.report


def kernels(
    model: str,
    *,
    target: str,
    block: str | None = None,
    compile_kernels: bool = True,
    with_source: bool = False,
    with_bytecode: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """What ``cftdiag kernels`` reports, as a dict of schema ``cftdiag.kernels/1``.

    ``model`` is what ``--model`` takes, ``target`` a name of `cftdiag.target.TARGETS`, ``options`` keywords of
    :class:`~cftdiag.options.CheckOptions` (``lengths``, ``batch_size``, ``attn`` ...). Runs in a child process. Raises
    :class:`~cftdiag.errors.InputError` and :class:`~cftdiag.errors.EnvironmentUnfit`.
    """
    origin = resolve(model)
    if origin.type != "file":
        options = {"lengths": DEFAULT_LENGTHS, "layers": "auto", **options}
    task = KernelsTask(
        origin=origin,
        options=CheckOptions(model=model, **options),
        target=target,
        block=block,
        compile_kernels=compile_kernels,
        with_bytecode=with_bytecode,
        with_source=with_source,
    )
    return dict(run(task, progress))


def work(task: KernelsTask, send: Send) -> None:
    """In the child."""
    from cftdiag.kernels.describe import describe
    from cftdiag.recipe import DepthNotReached
    from cftdiag.target.errors import TargetUnavailable

    try:
        send(Lowering(report=describe(task, lambda text: send(ProgressEvent(phase="lower", text=text)))))
    except InputError as error:
        send(Refused(message=str(error)))
    except (TargetUnavailable, DepthNotReached, EnvironmentUnfit) as error:
        send(Unfit(message=str(error)))
