"""Whether one run is the eager one of another: what differs between them beside torch.compile. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cftdiag.monitor.run_files import RunFiles

#: Versions that decide how fast a step is.
_VERSIONS = ("torch", "transformers", "triton")
#: Settings that a program noted of itself and that change nothing of what a step computes.
_BESIDE = frozenset(
    {
        "compile_model", "compile_scope", "compile_backend", "compile_cache", "compile_plan", "dynamic", "measure_eager",
        "preflight", "output_dir", "export", "resume", "tracker", "profile_steps", "max_steps", "max_epochs", "max_tokens",
        "checkpoint_every", "checkpoint_epochs", "checkpoint_best", "keep_checkpoints", "save_dtype", "validate_every",
        "validation_path", "token_cache", "osft_leak_every", "skip_nonfinite", "collective_timeout",
    }
)  # fmt: skip


def differences(run: RunFiles, eager: RunFiles) -> list[str]:
    """What keeps ``eager`` from being ``run`` without torch.compile, each as ``ranks 1, not 2``: its own value,
    then that of ``run``. What neither of them noted is not known and not told.
    """
    found = []
    compiled = sum(e.kind == "compile" and e.compiled.status == "ok" for e in eager.events)
    if compiled:
        found.append(f"{compiled} graphs compiled in it")
    if run.world_size != eager.world_size:
        found.append(f"ranks {eager.world_size}, not {run.world_size}")
    mine, yours = _head(run), _head(eager)
    for key, name in (("device", "device"), ("host", "host")):
        found += _unlike(name, mine.get(key), yours.get(key))
    for name in _VERSIONS:
        found += _unlike(name, *((head.get("environment") or {}).get(name) for head in (mine, yours)))
    found += _unlike("program", *(next(iter(head.get("argv") or ()), None) for head in (mine, yours)))
    own, other = (head.get("settings", {}).get("trainer") or {} for head in (mine, yours))
    for key in sorted((own.keys() & other.keys()) - _BESIDE):
        if own[key] != other[key]:
            found.append(f"{key.replace('_', '-')} {other[key]}, not {own[key]}")
    return [*found, *_trained(run, eager), *_shapes(run, eager)]


def _head(run: RunFiles) -> Mapping[str, Any]:
    return next((s.head for s in run.sessions if s.head), {})


def _unlike(name: str, mine: Any, yours: Any) -> list[str]:
    return [f"{name} {yours}, not {mine}"] if mine and yours and mine != yours else []


def _trained(run: RunFiles, eager: RunFiles) -> list[str]:
    mine, yours = (next((s.trained for s in one.sessions if s.trained), {}) for one in (run, eager))
    if not mine or not yours or mine == yours:
        return []
    return [f"trained parameters {_counts(yours)}, not {_counts(mine)}"]


def _counts(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count:,} {dtype}" for dtype, count in sorted(counts.items()))


def _shapes(run: RunFiles, eager: RunFiles) -> list[str]:
    """The first step of both whose batches were seen and have other shapes."""
    known = {(s.rank, s.step): s.shapes for s in run.steps if s.shapes}
    for step in eager.steps:
        own = known.get((step.rank, step.step))
        if own and step.shapes and own != step.shapes:
            return [f"batches {_text(step.shapes)} in step {step.step}, not {_text(own)}"]
    return []


def _text(shapes: tuple[tuple[int, int], ...]) -> str:
    return " ".join(f"{rows}x{length}" for rows, length in shapes)
