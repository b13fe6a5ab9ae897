"""From outcomes to a table: average accuracy, backward and forward transfer, with their spread over seeds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from trainer.continual.phases import Outcome


def figures(outcome: Outcome) -> dict[str, float]:
    """Of one method on one seed, as accuracies (Lopez-Paz and Ranzato, arXiv 1706.08840).

    ``average`` is over all tasks at the end. ``backward`` is what the tasks before the last have gained since each was
    learned: negative is forgotten. ``a task later`` is how well a task is answered when the next one has been trained.
    ``forward`` is how much better a task is answered before it is trained than by
    the untrained model.
    """
    phases = outcome.phases
    names = [phase.task for phase in phases]
    end = phases[-1].after
    values = {
        "average": statistics.mean(end[task].accuracy for task in names),
        "backward": statistics.mean(
            end[phase.task].accuracy - phase.after[phase.task].accuracy for phase in phases[:-1]
        ),
        "forward": statistics.mean(
            before.after[phase.task].accuracy - outcome.untrained[phase.task].accuracy
            for before, phase in itertools.pairwise(phases)
        ),
    }
    values["a task later"] = statistics.mean(
        after.after[phase.task].accuracy for phase, after in itertools.pairwise(phases)
    )
    values |= {f"{task} at the end": end[task].accuracy for task in names}
    values["steps a task"] = statistics.mean(phase.steps for phase in phases[1:])
    return values


def table(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A row for each method: ``learned`` (tasks that came to the level, of all) and mean and standard deviation
    over seeds of each of :func:`figures`.
    """
    rows: list[dict[str, Any]] = []
    for method in dict.fromkeys(o.method for o in outcomes):
        own = [o for o in outcomes if o.method == method]
        tasks = [phase for o in own for phase in o.phases[1:]]
        row: dict[str, Any] = {"method": method, "learned": (sum(p.learned for p in tasks), len(tasks))}
        each = [figures(o) for o in own]
        for name in each[0]:
            values = [f[name] for f in each]
            row[name] = (statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
        rows.append(row)
    return rows


def render(rows: Sequence[dict[str, Any]]) -> str:
    """As Markdown."""
    names = [name for name in rows[0] if name not in ("method", "learned")]
    lines = [
        "| method | learned | " + " | ".join(names) + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        digits = {name: 0 if name.startswith("steps") else 2 for name in names}
        cells = [f"{row[name][0]:.{digits[name]}f} +- {row[name][1]:.{digits[name]}f}" for name in names]
        learned, count = row["learned"]
        lines.append(f"| {row['method']} | {learned} of {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
