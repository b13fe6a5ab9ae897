"""What every rendering says in the same words: names of blocks, counts, the headline, the verdict. Pure
functions over the check's dict.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.findings import SEVERITIES

#: The worst first, as a report is read.
WORST_FIRST = SEVERITIES[::-1]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def plural(count: int, noun: str) -> str:
    """``1 graph``, ``2 graphs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number_ranges(numbers: Iterable[int]) -> str:
    """``0-3,5,7-8`` of a set of integers."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def fold_names(names: Sequence[str]) -> str:
    """``model.layers.0-35`` of the names of its modules; names that differ in more than their last number
    stay apart, in order.
    """
    folded: dict[tuple[str, str], list[int]] = {}
    plain: dict[str, None] = {}
    for name in names:
        found = list(_NUMBER.finditer(name))
        if found:
            folded.setdefault((name[: found[-1].start()], name[found[-1].end() :]), []).append(
                int(found[-1].group())
            )
        else:
            plain[name] = None
    return ", ".join(
        [*(f"{before}{number_ranges(numbers)}{after}" for (before, after), numbers in folded.items()), *plain]
    )


def parameters(count: int | None) -> str:
    """``4.02 B`` of a number of parameters."""
    if count is None:
        return "unknown"
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)


def yes_no(value: bool | None) -> str:
    """``yes``, ``no``, or ``unknown`` for None."""
    return "unknown" if value is None else ("yes" if value else "no")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockGroup:
    """Blocks of one kind that fared alike."""

    cls: str
    count: int
    names: str
    graphs: int | None
    graph_breaks: int
    recompiles: int
    fullgraph: bool | None

    @property
    def trouble(self) -> bool:
        """True when something of these blocks is not as it should be."""
        return self.graph_breaks > 0 or self.recompiles > 0 or self.fullgraph is False or self.graphs == 0

    def facts(self) -> list[str]:
        """``1 graph``, ``fullgraph yes``, then what is wrong."""
        facts = [
            "graphs unknown" if self.graphs is None else plural(self.graphs, "graph"),
            f"fullgraph {yes_no(self.fullgraph)}",
        ]
        if self.graphs == 0:
            facts.append("runs eager")
        if self.graph_breaks:
            facts.append(plural(self.graph_breaks, "graph break"))
        if self.recompiles:
            facts.append(plural(self.recompiles, "recompile"))
        return facts


def block_groups(blocks: Iterable[Mapping[str, Any]]) -> list[BlockGroup]:
    """Blocks grouped by kind and by how they fared, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for block in blocks:
        key = (
            block.get("kind"),
            block.get("class"),
            *(block.get(k) for k in ("graphs", "graphs_counted", "graph_breaks", "recompiles", "fullgraph")),
        )
        groups.setdefault(key, []).append(block)
    return [
        BlockGroup(
            cls=str(members[0].get("class") or "module"),
            count=len(members),
            names=fold_names([str(b.get("fqn")) for b in members]),
            graphs=members[0].get("graphs") if members[0].get("graphs_counted", True) else None,
            graph_breaks=members[0].get("graph_breaks") or 0,
            recompiles=members[0].get("recompiles") or 0,
            fullgraph=members[0].get("fullgraph"),
        )
        for members in groups.values()
    ]


def severity_counts(findings: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Number of findings of each severity, worst first."""
    counts = dict.fromkeys(WORST_FIRST, 0)
    for finding in findings:
        if finding.get("severity") in counts:
            counts[finding["severity"]] += 1
    return counts


def short_path(file: str) -> str:
    """Path from the installed package or the working directory on; any other path as it is."""
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in file:
            return file.rpartition(marker)[2]
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def where(finding: Mapping[str, Any]) -> str | None:
    """``file:line in function: code`` of a finding, None when nothing is known."""
    place = finding.get("where") or {}
    if not place.get("file"):
        return place.get("code")
    text = short_path(str(place["file"]))
    if place.get("line") is not None:
        text += f":{place['line']}"
    if place.get("function"):
        text += f" in {place['function']}"
    return f"{text}: {place['code']}" if place.get("code") else text


def best_remedy(finding: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The remedy to show first: the first one that was not tried in vain; never a step of diagnosis."""
    remedies = [r for r in finding.get("remedies") or [] if r.get("applicability") != "diagnosis"]
    return next((r for r in remedies if r.get("verified") is not False), remedies[0] if remedies else None)


def depth_words(data: Mapping[str, Any]) -> str:
    """``depth joint (without Inductor's guards)``, ``depth codegen for h200, predicted``."""
    depth, target = data.get("depth"), data.get("target")
    if depth == "codegen" and target:
        return f"depth codegen for {target}, predicted"
    if depth in ("trace", "joint"):
        return f"depth {depth} (without Inductor's guards)"
    return f"depth {depth}"


def unseen(data: Mapping[str, Any]) -> str:
    """``--target h200 adds Inductor's guards``: what this depth cannot see, and the option that does; empty where
    the depth sees all that a check can.
    """
    if data.get("target") or data.get("verdict") == "error" or not data.get("compiles"):
        return ""
    adds = {
        "trace": "--depth joint adds the backward graphs, --target h200 Inductor's guards and kernels",
        "joint": "--target h200 adds Inductor's guards and kernels",
    }
    return adds.get(str(data.get("depth")), "")


def verdict_words(data: Mapping[str, Any]) -> str:
    """The verdict with the depth that it was reached at."""
    words = {
        "viable": "viable",
        "viable_with_recompiles": "viable with recompiles",
        "not_viable": "not viable",
        "error": "no conclusion",
    }.get(data["verdict"], data["verdict"])
    return f"{words} at {depth_words(data)}"


def verdict_facts(data: Mapping[str, Any]) -> str:
    """What the verdict stands on: blocks, compiles, findings."""
    blocks = data["blocks"]
    facts = []
    if blocks:
        whole = sum(1 for b in blocks if b.get("fullgraph"))
        unknown = all(b.get("fullgraph") is None for b in blocks)
        number = plural(len(blocks), "block")
        facts.append(f"{number}, fullgraph unknown" if unknown else f"{whole} of {number} fullgraph")
    facts.append(plural(len(data["compiles"]), "compile"))
    facts += [
        plural(count, severity)
        for severity, count in severity_counts(data["findings"]).items()
        if count and severity != "info"
    ]
    return ", ".join(facts)


def cost(data: Mapping[str, Any]) -> str:
    """``15.2 s, peak 0.66 GB``: this machine's time and memory."""
    timing = data["timing"]
    parts = []
    if timing.get("wall_s") is not None:
        parts.append(f"{timing['wall_s']:.1f} s")
    if timing.get("peak_rss_gb") is not None:
        parts.append(f"peak {timing['peak_rss_gb']:.2f} GB")
    return ", ".join(parts)


def verdict_line(data: Mapping[str, Any]) -> str:
    """The one line that ``-q`` prints."""
    spent, more = cost(data), unseen(data)
    line = f"{verdict_words(data)}: {verdict_facts(data)}"
    line = f"{line} [{spent}]" if spent else line
    return f"{line}; {more}" if more else line


def headline(data: Mapping[str, Any]) -> tuple[str, str]:
    """Name of what was checked, and what it is: ``Qwen3ForCausalLM, 4.02 B parameters, without weights``."""
    subject = data["subject"]
    facts = [str(subject["model_class"])] if subject.get("model_class") else []
    if subject.get("parameters") is not None:
        facts.append(f"{parameters(subject['parameters'])} parameters")
    if subject.get("weights"):
        facts.append("real weights" if subject["weights"] == "real" else "no weights")
    if subject.get("layers") not in (None, "all"):
        facts.append(f"layers {subject['layers']}")
    return str(subject.get("name") or "model"), ", ".join(facts)


#: Keys of the subject that say under which conditions the check ran, with their words and the value that goes
#: without saying.
_CONDITIONS: tuple[tuple[str, str, Any], ...] = (
    ("attn", "attention {}", None),
    ("dtype", "{}", None),
    ("compile_scope", "scope {}", None),
    ("method", "method {}", "full"),
    ("objective", "objective {}", "sft"),
    ("ac", "activation checkpointing {}", "none"),
    ("world_size", "world size {}", 1),
    ("tensor_parallel", "tensor parallel {}", 1),
    ("packed", "packed", False),
    ("batch_size", "batch {}", None),
    ("lengths", "lengths {}", None),
)

#: What a Subject of the user's own decides by itself, whatever the options say.
_CONFIG_ONLY = ("attn", "dtype", "method", "batch_size")


def conditions(data: Mapping[str, Any]) -> list[str]:
    """How it was checked: one line on the training step and its compile options, one on depth and versions."""
    subject, environment = data["subject"], data["environment"]
    own = subject.get("type") not in ("config", "hub")
    words = []
    for key, form, silent in _CONDITIONS:
        value = subject.get(key)
        if value is None or value == silent or (own and key in _CONFIG_ONLY):
            continue
        if isinstance(value, list | tuple):
            value = " ".join(map(str, dict.fromkeys(value)))
        words.append(form.format(value))
    kwargs = subject.get("compile_kwargs") or {}
    compile_words = [f"{key}={value!r}" for key, value in kwargs.items()]
    versions = [
        f"{key} {environment[key]}"
        for key in ("torch", "transformers", "triton", "python")
        if environment.get(key)
    ]
    compiled = ", ".join(compile_words) or "torch's defaults (the subject's own)"
    lines = [
        ", ".join(words),
        f"compiled with {compiled}" if "compile_kwargs" in subject else "",
        ", ".join([depth_words(data), *versions]),
    ]
    return [line for line in [*lines, *script_lines(data)] if line]


def script_lines(data: Mapping[str, Any]) -> list[str]:
    """Of a rehearsed command: its ranks and its end, and what became of the files that it wrote."""
    script = data.get("script")
    if not script:
        return []
    world = (data.get("subject") or {}).get("world_size") or 1
    words = [f"{plural(script.get('steps') or 0, 'step')} rehearsed, the script {script.get('ended')}"]
    if world > 1:
        ranks = script.get("ranks") or []
        under = f" under {script['launcher']}" if script.get("launcher") else ""
        words.append(f"rank{'s' if len(ranks) > 1 else ''} {number_ranges(ranks)} of {world}{under}")
    lines = ["; ".join(words)]
    written = [str(path) for path in script.get("written") or ()]
    if written:
        shown = ", ".join(short_path(path) for path in written[:3]) + (" ..." if len(written) > 3 else "")
        lines.append(f"{plural(len(written), 'file')} went to a scratch folder instead of {shown}")
    return [*lines, *coverage_line(data), *callback_lines(data)]


def coverage_line(data: Mapping[str, Any]) -> list[str]:
    """``compiled: 97 % of the parameters, 91 % of the operations; eager: lm_head 8 %, ...``."""
    coverage = data.get("coverage")
    if not coverage:
        return []
    shares = [
        f"{100 * coverage[key]:.0f} % of the {noun}"
        for key, noun in (("parameters", "parameters"), ("flops", "operations"))
        if coverage.get(key) is not None
    ]
    if not shares:
        return []
    eager = [
        str(row["name"]) for row in coverage.get("eager") or () if row.get("flops") or row.get("parameters")
    ]
    rest = f"; eager: {', '.join(eager[:4])}{' ...' if len(eager) > 4 else ''}" if eager else ""
    return [f"compiled: {', '.join(shares)}{rest}"]


def callback_lines(data: Mapping[str, Any]) -> list[str]:
    """One line a callback that does something to the steps, and one that counts the others."""
    rows = (data.get("script") or {}).get("callbacks") or ()
    lines, idle = [], []
    for row in rows:
        words = [plural(row[key], noun) for key, noun in _IN_CALLBACKS if row.get(key)]
        if (row.get("share") or 0) >= 0.005:
            words.insert(0, f"{100 * row['share']:.0f} % of the operations")
        if row.get("reads"):
            words.append(
                f"{plural(row['reads'], 'read')} of what the step computes, each of which waits for the device"
            )
        words += [_changed(change) for change in row.get("changes") or ()]
        if words:
            lines.append(f"callback {row['name']}, {plural(row['calls'], 'call')}: {'; '.join(words)}")
        else:
            idle.append(str(row["name"]))
    if idle:
        lines.append(f"callbacks that change and compile nothing: {', '.join(idle)}")
    return lines


#: What is counted inside of a callback, in words.
_IN_CALLBACKS = (
    ("compiles", "compile"),
    ("recompiles", "recompile"),
    ("graph_breaks", "graph break"),
)


def _changed(change: Mapping[str, Any]) -> str:
    names = fold_names([str(name) for name in change["names"]])
    more = (
        f" and {change['count'] - len(change['names'])} more"
        if change["count"] > len(change["names"])
        else ""
    )
    causes = ", ".join(change.get("causes") or ())
    then = f", where it recompiles ({causes})" if causes else ""
    return (
        f"sets {change['attribute']} of {names}{more} from {change['before']} to {change['after']} "
        f"for step {change['step']}{then}"
    )


def passes_not_run(data: Mapping[str, Any]) -> list[str]:
    """``no collect pass: every block was captured whole ...``."""
    passes = data["timing"].get("passes") or []
    return [
        f"no {p.get('mode')} pass: {p['skipped']}"
        for p in passes
        if isinstance(p, Mapping) and p.get("skipped")
    ]


#: Columns of the table of compiles: title -> key.
COMPILE_COLUMNS = {
    "id": "compile_id",
    "block": "block",
    "step": "step",
    "length": "length",
    "seconds": "seconds",
    "cause": "cause",
}


def compile_row(compile_: Mapping[str, Any]) -> list[str]:
    """One row of the table of compiles; the first compile of a region has no cause to name."""
    row = [cell(compile_.get(key)) for key in COMPILE_COLUMNS.values()]
    if compile_.get("cause") is None and str(compile_.get("compile_id")).endswith("/0"):
        row[-1] = "first"
    if compile_.get("rank") is not None:
        row[1] += f", rank {compile_['rank']}"
    return row


def cell(value: Any) -> str:
    """A table's cell: ``-`` for nothing, seconds to a tenth."""
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def reach(finding: Mapping[str, Any]) -> str:
    """``in 36 blocks: model.layers.0-35, 3 times``."""
    blocks = [str(b) for b in finding.get("blocks") or ()]
    words = ""
    if blocks:
        names = fold_names(blocks)
        words = f"in {names}" if len(blocks) == 1 else f"in {len(blocks)} blocks: {names}"
    count = finding.get("count") or 1
    if count > 1:
        words += f"{', ' if words else ''}{count} times"
    for key, noun in (("lengths", "length"), ("steps", "step")):
        if finding.get(key):
            numbers = ",".join(map(str, finding[key])) if key == "lengths" else number_ranges(finding[key])
            words += f"{', ' if words else ''}at {noun}{'s' if len(finding[key]) > 1 else ''} {numbers}"
    return words
