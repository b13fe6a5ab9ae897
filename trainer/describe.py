"""The lines printed before training."""

from __future__ import annotations

from trainer.config import TrainConfig
from trainer.data import Data
from trainer.idle import idle_modules
from trainer.methods import method_of
from trainer.model import model_class
from trainer.program import Program
from trainer.weights import elements


def describe(
    program: Program, data: Data, config: TrainConfig, seconds: float, cached: str | None
) -> list[str]:
    """What is trained, how it is wrapped, what is compiled."""
    trained = sum(p.numel() for p in program.model.parameters() if p.requires_grad)
    total = elements(program.model)
    lines = [
        f"{model_class(program.source.config).__name__}: {len(program.blocks)} blocks, {total:,} parameters, {trained:,} trained ({config.method})",
        f"attention {program.source.attn} ({program.source.attn_reason}), dtype {program.dtype}, ac {config.ac}, "
        f"mesh {tuple(program.mesh.shape)} {program.device.type}, built in {seconds:.1f} s",
        f"compile scope {config.scope}"
        + (f", backend {config.backend}, dynamic {config.dynamic}" if config.scope != "none" else ""),
        _of_data(program, data, config),
    ]
    if idle := idle_modules(program.model):
        left = sum(p.numel() for name in idle for p in program.model.get_submodule(name).parameters())
        lines.append(
            f"a step on text never calls {', '.join(idle)}: {left:,} parameters are left as they are, by every method"
        )
    if cached:
        lines.append(cached)
    return lines + method_of(config).lines(program.model, program.blocks, program.targets)


def _of_data(program: Program, data: Data, config: TrainConfig) -> str:
    if program.objective.makes_rows:
        return (
            f"{len(data.train):,} prompts, {len(data.steps):,} steps, {config.grpo_generations} answers to each of up to "
            f"{config.grpo_completion_tokens} tokens, sampled eager"
            + (f", {config.updates} updates on each rollout" if config.updates > 1 else "")
        )
    lengths = [n for step in data.lengths for micro in step for n in micro]
    return f"{len(data.train):,} samples, {len(data.steps):,} steps, rows of {min(lengths)} to {max(lengths)} tokens"
