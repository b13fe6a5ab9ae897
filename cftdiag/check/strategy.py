"""Which passes a check runs, and which it can spare. Pure decisions on what earlier passes gave. Torch-free."""

from __future__ import annotations

import dataclasses
import os

from cftdiag.check.runner import BuiltPass, PassResult
from cftdiag.error_text import shorten
from cftdiag.errors import CheckError, EnvironmentUnfit, InputError
from cftdiag.options import SMALL_MODEL, CheckOptions
from cftdiag.subject import Origin

#: Without fullgraph no graph broke: fullgraph=True captures the very same.
NO_BREAK = "no graph broke and every block ran in a graph, so fullgraph=True captures the same"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """The passes that a report is made of. ``main``'s recompiles count, ``breaks`` met the graph breaks,
    ``whole`` is the fullgraph pass; one pass may be all three.
    """

    main: BuiltPass
    breaks: PassResult | None
    whole: PassResult | None


def built(first: PassResult, timeout: float) -> BuiltPass:
    """The first pass as one that built its subject; raises :class:`EnvironmentUnfit` where it did not."""
    if isinstance(first, BuiltPass):
        return first
    if first.outcome == "timeout":
        raise EnvironmentUnfit(
            f"the model was not built within {timeout:.0f} s; raise --timeout or take fewer --layers"
        )
    raise EnvironmentUnfit(f"the process that builds the model ended: {first.detail or 'no reason given'}")


def needs_eager(first: PassResult) -> bool:
    """True when only a run without compiling tells whose fault a failure is."""
    return first.raised is not None and not first.raised.compile


def own_failure(first: PassResult, eager: PassResult) -> CheckError | None:
    """A failure that the program also has without compiling is the program's: exit 2, not a finding."""
    raised = eager.raised
    if raised is None or first.raised is None or raised.error != first.raised.error:
        return None
    where = raised.where
    place = f" at {os.path.basename(where.file)}:{where.line}" if where is not None and where.file else ""
    return InputError(
        f"step {raised.step} fails without torch.compile too: {raised.error}: {shorten(' '.join(raised.message.split()), 300)}{place}"
    )


def second_mode(first: BuiltPass) -> str:
    """The other way of compiling."""
    return "collect" if first.mode == "fullgraph" else "fullgraph"


def why_no_second(first: BuiltPass, *, forks: bool) -> str | None:
    """Why the other way of compiling cannot differ from the first, or cannot be tried; None where it is to be."""
    if not forks:
        return "a live Subject in a process that cannot be forked is compiled once"
    if first.program.wrap:
        return "the subject compiles itself (wrap)"
    if first.outcome == "timeout":
        return "the first pass did not end in time"
    if first.mode == "fullgraph":
        if first.whole and not first.unbacked:
            return "every block was captured whole and no size or number was read from a tensor, so without fullgraph the same graphs come out"
        return None
    ended = first.ended and not first.has("graph_break")
    compiled = all(e.compiled.status == "ok" for e in first.events if e.kind == "compile")
    if ended and compiled and first.calls and all(first.graphs.get(fqn) for fqn in first.calls):
        return NO_BREAK
    return None


def choose(first: BuiltPass, second: PassResult | None) -> Chosen:
    """The subject's own way of compiling decides, unless fullgraph refused a block: then nothing of that
    block was compiled, and the collecting pass counts.
    """
    if first.mode != "fullgraph":
        whole = second if second is not None and second.mode == "fullgraph" else None
        return Chosen(main=first, breaks=first, whole=whole)
    if first.whole or not isinstance(second, BuiltPass):
        return Chosen(main=first, breaks=second, whole=first)
    return Chosen(main=second, breaks=second, whole=first)


def compares_numerics(first: BuiltPass, options: CheckOptions, *, forks: bool) -> bool:
    """True when the compiled steps are to be held against eager ones."""
    return (
        forks
        and first.ended
        and not first.program.weightless
        and (first.program.parameters < SMALL_MODEL or options.budget.numerics)
    )


def tries_uneven_routing(first: PassResult, options: CheckOptions, *, forks: bool) -> bool:
    """True where the sizes of a mixture's assumed routing reach Python or a graph's shapes.

    One assumed routing can miss a recompile: an expert with exactly one token is a size that torch
    specialises on.
    """
    notes = () if first.result is None else first.result.undetermined
    kinds = {note.what for note in notes}
    return (
        forks
        and first.outcome == "ok"
        and options.compile.routing == "balanced"
        and "planted" in kinds
        and ("read" in kinds or first.unbacked)
    )


def proof_options(options: CheckOptions, origin: Origin, lengths: tuple[int, ...] | None) -> CheckOptions:
    """Options that remedies are proved under. ``lengths`` are those of the data that compile something, so
    that a proof can fail.
    """
    changes: dict[str, object] = {} if lengths is None else {"lengths": lengths}
    if origin.from_config and options.subject.layers in (None, "all"):
        # one block of each kind shows what all of its kind do, and a proof then costs seconds
        changes["layers"] = "auto"
    return options.with_(**changes)
