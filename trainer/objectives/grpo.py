"""Group relative policy optimization (arXiv 2402.03300): answers are sampled, a function rewards them, and each is
made likelier by how much better it is than the others to the same prompt.

A step has three parts. The *rollout* samples ``--grpo-generations`` answers to each of the step's prompts, by
transformers' own ``generate`` with its cache of keys and values. It runs eager: its shapes grow with each token, and
as graphs they would be entries beside those of training for the very same blocks. The *reward* is a Python function
of prompts and answers. The *update* is a step like any other: prompts with their answers in packed rows, which are
compiled as the rows of every objective are, one graph a region whatever the lengths.

``--grpo-iterations`` updates follow a rollout. The first trains the policy that sampled: the ratio of the two is 1, and
what holds the step back is the gradient's clipping and, with ``--grpo-beta``, the reference. The later ones train
another than the one that sampled, and ``--grpo-clip`` holds them to it. What they need of it, the answers and their
log-probabilities, is in every checkpoint that is written between two of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from cftdiag.error_text import one_line
from cftdiag.recipe.loss import LossRegion, RowLoss, TokenLogProbs
from cftdiag.recipe.packing import IGNORE, Row, Sample, Step, pack
from trainer.batch import Batch, Samples, to_device
from trainer.config import TrainConfig
from trainer.data import Data, shape_of
from trainer.objectives.objective import Objective
from trainer.rows import Tokens

Reward = Callable[..., Sequence[float]]


class GRPO(Objective):
    """Advantages are a group's rewards less their mean, over their standard deviation. The loss is the mean over the
    tokens of all answers (``dapo``), over answers of the mean over their tokens (``grpo``), or over answers of the sum
    over their tokens by the longest allowed (``dr_grpo``).
    """

    makes_rows = True

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.loss = RowLoss(
            chunk=TokenLogProbs(config.grpo_temperature),
            finish=PolicyLoss(clip=config.grpo_clip, beta=config.grpo_beta),
            per_row=("advantages", "weights", "old", "reference"),
            figures=("kl", "clipped"),
            weight=_weights_of,
            name="log_probs",
        )
        self._reward: Reward | None = None
        self._program: Any = None
        self._start: list[Tensor] | None = None
        self._rollout: Rollout | None = None
        """Of the last step of training."""
        self._figures: list[dict[str, float]] = []

    def divisor(self, step: Step) -> int:
        return step.loss_tokens if self.config.grpo_loss == "dapo" else step.samples

    # ---- rows ----

    def extend(self, batch: Batch) -> Batch:
        """As if every token had been rewarded with 1."""
        learnt = (batch["labels"] != IGNORE).float()
        nothing = torch.zeros_like(learnt)
        return {
            **batch,
            "advantages": learnt.clone(),
            "weights": learnt,
            "old": torch.full_like(learnt, math.nan),
            "reference": nothing,
        }

    def collate(self, row: Row, samples: Samples, *, pad_id: int, varlen: bool) -> Batch:
        batch = super().collate(row, samples, pad_id=pad_id, varlen=varlen)
        if isinstance(samples, Rollout):
            place = 0
            for index in row.samples:
                answer = samples.answers[index]
                here = slice(place, place + len(answer.ids))
                batch["advantages"][0, here] = answer.advantage
                batch["weights"][0, here] *= self._weight(answer.count)
                place = here.stop
        return batch

    def _weight(self, tokens: int) -> float:
        if self.config.grpo_loss == "dapo":
            return 1.0
        return 1.0 / (tokens if self.config.grpo_loss == "grpo" else self.config.grpo_completion_tokens)

    def current(self, samples: Samples) -> Samples:
        return self._rollout or samples

    def rows_ahead(self, data: Data) -> tuple[Samples, list[Step]]:
        """Rows of answers that are all as long as they may be: what a check can know of them."""
        made: list[tuple[Samples, Step]] = []
        for step in data.steps[:8]:
            prompts = [index for micro in step.rows for row in micro for index in row.samples]
            answers = [
                Answer(
                    ids=array("q", [*data.train[index].input_ids, *[0] * self.config.grpo_completion_tokens]),
                    count=self.config.grpo_completion_tokens,
                    advantage=1.0,
                    line=data.train.samples[index].line,
                )
                for index in prompts
                for _ in range(self.config.grpo_generations)
            ]
            rollout = Rollout(answers)
            made.append((rollout, self._packed(rollout, step)))
        everything = Rollout(
            [a for samples, _ in made if isinstance(samples, Rollout) for a in samples.answers]
        )
        steps, first = [], 0
        for samples, step in made:
            rows = tuple(
                tuple(
                    dataclasses.replace(row, samples=tuple(first + i for i in row.samples)) for row in micro
                )
                for micro in step.rows
            )
            steps.append(dataclasses.replace(step, rows=rows))
            first += len(samples.samples)
        return everything, steps

    def _packed(self, rollout: Rollout, step: Step) -> Step:
        lengths = [sample.length for sample in rollout.samples]
        shape = shape_of(self.config, 1)
        rows = [
            tuple(
                Row(samples=tuple(members), length=shape.padded(sum(lengths[i] for i in members)))
                for members in ranks
            )
            for ranks in pack(lengths, shape)
        ]
        return Step(
            epoch=step.epoch,
            rows=tuple(rows),
            samples=len(lengths),
            tokens=sum(lengths),
            loss_tokens=sum(sample.loss_tokens for sample in rollout.samples),
        )

    # ---- a step ----

    def require(self, *, world: int, attn: str, tokenizer: Any) -> None:
        if world > 1:
            raise ValueError(
                f"objective grpo trains in one process, not in {world}; start it without torchrun, or with --nproc-per-node 1"
            )
        if attn in ("varlen", "flex_attention"):
            raise ValueError(
                f"objective grpo samples without a compiled graph, where attention {attn} does not run; give --attn sdpa"
            )
        if tokenizer is None:
            raise ValueError("objective grpo needs a tokenizer, and the model has none")

    def open(self) -> None:
        self._reward = load_reward(self.config.reward or "")

    @property
    def needs_the_start(self) -> bool:
        return self.config.grpo_beta > 0

    def begin(self, program: Any) -> None:
        self._program = program
        if self.needs_the_start:
            self._start = [_local(p).clone() for p in _trained(program.model)]

    def state(self) -> dict[str, Any] | None:
        """The rollout, where more than one update follows it."""
        rollout = self._rollout
        if rollout is None or self.config.grpo_iterations == 1:
            return None
        return {
            "answers": [{**dataclasses.asdict(a), "ids": a.ids.tolist()} for a in rollout.answers],
            "figures": rollout.figures,
            "old": [values.tolist() for values in rollout.old],
            "reference": [values.tolist() for values in rollout.reference],
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        self._rollout = Rollout(
            [Answer(**{**answer, "ids": array("q", answer["ids"])}) for answer in state["answers"]],
            state["figures"],
        )
        self._rollout.old = [torch.tensor(values) for values in state["old"]]
        self._rollout.reference = [torch.tensor(values) for values in state["reference"]]

    def batches(
        self,
        steps: Sequence[Step],
        samples: Any,
        *,
        rank: int,
        pad_id: int,
        varlen: bool,
        workers: int = 0,
        pin: bool = False,
    ) -> Iterator[tuple[Step, list[Batch]]]:
        """Sample, reward and pack when the loop asks for the step: by the weights of that moment. A further update on
        the same answers gets their log-probabilities of that time.
        """
        for step in steps:
            training = self._program.model.training  # and no validation, which nothing follows
            if step.update:
                assert self._rollout is not None, "a rollout comes before its second update"
                rollout = self._rollout
            else:
                rollout = self._sample(step, samples, pad_id)
            packed = self._packed(rollout, step)
            batches = [self.collate(row, rollout, pad_id=pad_id, varlen=varlen) for (row,) in packed.rows]
            if step.update:
                for batch, old in zip(batches, rollout.old, strict=True):
                    batch["old"] = old
            else:
                # The first update trains the policy that sampled: their ratio is 1, whatever computes it.
                if training and self.config.grpo_iterations > 1:
                    rollout.old = self._log_probs(batches)
                if self._start is not None:
                    with self._as_at_the_start():
                        rollout.reference = self._log_probs(batches)
            if self._start is not None:
                for batch, reference in zip(batches, rollout.reference, strict=True):
                    batch["reference"] = reference
            if training:
                self._rollout = rollout
            self._figures.append(rollout.figures)
            yield packed, batches

    @torch.no_grad()
    def _log_probs(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Of the tokens of each row by the policy with the weights that it has, eager and without dropout, 1 x S."""
        program = self._program
        with _evaluating(program.model):
            return [program.model(**to_device(batch, program.device))[2].float().cpu() for batch in batches]

    def batches_of(self, lengths: Sequence[int], *, pad_id: int, varlen: bool) -> list[Batch]:
        made = []
        for length in lengths:
            answer = Answer(ids=array("q", [pad_id] * (length - 1)), count=length - 2, advantage=1.0, line=0)
            made.append(
                self.collate(
                    Row(samples=(0,), length=length), Rollout([answer]), pad_id=pad_id, varlen=varlen
                )
            )
        return made

    def take_figures(self) -> dict[str, float]:
        taken, self._figures = self._figures, []
        return {name: sum(one[name] for one in taken) / len(taken) for name in (taken[0] if taken else ())}

    def badness(self, validated: Mapping[str, float]) -> float:
        """The policy with the highest reward is the best one: its loss says nothing."""
        return -validated["val_reward"]

    # ---- rollout ----

    def _sample(self, step: Step, samples: Any, pad_id: int) -> Rollout:
        indices = [index for micro in step.rows for row in micro for index in row.samples]
        records = [samples.record(index) for index in indices]
        prompts = [list(samples[index].input_ids) for index in indices]
        group = self.config.grpo_generations
        with _generating(self._program.model):
            written = self._generate([p for p in prompts for _ in range(group)], pad_id)
        answers = [
            Answer(
                ids=array("q", [*prompts[i // group], *new]),
                count=len(new),
                advantage=0.0,
                line=samples.samples[indices[i // group]].line,
            )
            for i, new in enumerate(written)
        ]
        decode = self._program.source.tokenizer.decode
        texts = [decode(new, skip_special_tokens=True) for new in written]
        rewards = self._rewards(records, texts)
        advantages = advantages_of(rewards, group)
        answers = [dataclasses.replace(a, advantage=v) for a, v in zip(answers, advantages, strict=True)]
        mean = sum(rewards) / len(rewards)
        figures = {
            "reward": mean,
            "reward_std": math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards)),
            "answer_tokens": sum(map(len, written)) / len(written),
        }
        return Rollout(answers, figures)

    def _generate(self, prompts: list[list[int]], pad_id: int) -> list[list[int]]:
        """What is written after each prompt, its end token included. As many at once as tokens fit a row."""
        from transformers import GenerationConfig

        config, model = self.config, self._program.model
        ends = self._ends()
        asked = GenerationConfig(
            do_sample=True, temperature=config.grpo_temperature, top_k=0, top_p=1.0, max_new_tokens=config.grpo_completion_tokens,
            eos_token_id=ends, pad_token_id=pad_id, use_cache=True,
        )  # fmt: skip
        longest = max(map(len, prompts))
        at_once = max(1, config.row_capacity // (longest + config.grpo_completion_tokens))
        written: list[list[int]] = []
        for first in range(0, len(prompts), at_once):
            part = prompts[first : first + at_once]
            width = max(map(len, part))
            ids = torch.tensor([[pad_id] * (width - len(p)) + p for p in part])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            device = self._program.device
            out = model.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=asked
            )
            written += [_until_end(new, ends) for new in out[:, width:].tolist()]
        return written

    def _ends(self) -> list[int]:
        from transformers import GenerationConfig

        source = self._program.source
        found: Any = None
        if source.path is not None:
            with contextlib.suppress(OSError, ValueError):
                found = GenerationConfig.from_pretrained(source.path).eos_token_id
        if found is None:
            found = source.tokenizer.eos_token_id
        if found is None:
            raise ValueError("objective grpo needs a token that ends an answer, and the tokenizer names none")
        return list(found) if isinstance(found, list | tuple) else [int(found)]

    def _rewards(self, records: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[float]:
        """By the user's function, which is called as TRL calls one: prompts and completions in the form of the data,
        and every other column of it.
        """
        assert self._reward is not None
        group, name = self.config.grpo_generations, self.config.reward
        repeated = [record for record in records for _ in range(group)]
        columns = {key for record in records for key in record} - {"prompt", "completions", "completion"}
        talks = [isinstance(record["prompt"], list) for record in repeated]
        completions = [
            [{"role": "assistant", "content": text}] if talk else text
            for text, talk in zip(texts, talks, strict=True)
        ]
        try:
            given = self._reward(
                prompts=[record["prompt"] for record in repeated],
                completions=completions,
                **{str(key): [record.get(key) for record in repeated] for key in sorted(columns)},
            )
            rewards = [float(value) for value in given]
        except Exception as error:  # whatever a user's function raises is the user's to see, in one line
            raise ValueError(f"the reward {name} failed: {one_line(error)}") from error
        if len(rewards) != len(texts):
            raise ValueError(f"the reward {name} gave {len(rewards)} numbers for {len(texts)} answers")
        if bad := [value for value in rewards if not math.isfinite(value)]:
            raise ValueError(f"the reward {name} gave {bad[0]}; a reward is a finite number")
        return rewards

    # ---- the reference ----

    @contextlib.contextmanager
    def _as_at_the_start(self) -> Iterator[None]:
        """The policy as it was before the first step, in the same modules: no second model, no second graph."""
        model = self._program.model
        assert self._start is not None
        with torch.no_grad():
            now = [_local(p).clone() for p in _trained(model)]
            _set(model, self._start)
            try:
                yield
            finally:
                _set(model, now)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A prompt and what was written after it."""

    ids: array[int]
    count: int
    """Tokens of the answer, at the end of ``ids``."""
    advantage: float
    line: int
    """Of the prompt in the data."""


class Rollout:
    """The answers of one step as samples."""

    def __init__(self, answers: Sequence[Answer], figures: Mapping[str, float] | None = None) -> None:
        self.answers = answers
        self.figures = dict(figures or {})
        self.old: list[Tensor] = []
        """Log-probabilities of the policy that sampled, 1 x S for each row; for updates after the first."""
        self.reference: list[Tensor] = []
        """The same of the policy before the first step, where it holds."""
        self.samples: list[Sample] = [self[i].sample(answer.line) for i, answer in enumerate(answers)]

    def __getitem__(self, index: int) -> Tokens:
        answer = self.answers[index]
        given = len(answer.ids) - answer.count
        labels = array("q", [IGNORE] * given) + answer.ids[given:]
        return Tokens(input_ids=answer.ids, labels=labels)


class PolicyLoss(LossRegion):
    """From the log-probabilities of a row's tokens to the summed loss of its answers."""

    def __init__(self, *, clip: float, beta: float) -> None:
        super().__init__()
        self.clip, self.beta = clip, beta

    def forward(
        self, values: Tensor, advantages: Tensor, weights: Tensor, old: Tensor, reference: Tensor
    ) -> tuple[Tensor, Tensor]:
        """All are B x S. ``weights`` are 0 where there is no answer; ``old`` are the log-probabilities of the policy
        that sampled, NaN where it is the one that is trained.
        """
        advantages, weights = advantages.to(values.dtype), weights.to(values.dtype)
        old = torch.where(old.isnan(), values.detach(), old.to(values.dtype))
        ratio = torch.exp(values - old)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        losses = -torch.min(ratio * advantages, clipped * advantages)
        kl = torch.zeros_like(losses)
        if self.beta:
            apart = reference.to(values.dtype) - values
            # Times the ratio, whose gradient makes that of the divergence the true one (arXiv 2512.02556).
            kl = (torch.exp(apart) - apart - 1) * ratio
            losses = losses + self.beta * kl
        held = (clipped * advantages < ratio * advantages).to(values.dtype)
        figures = torch.stack([(kl.detach() * weights).sum(), (held * weights).sum()])
        return (losses * weights).sum(), figures


def advantages_of(rewards: Sequence[float], group: int) -> list[float]:
    """Of each answer among the ``group`` to its prompt: reward less the mean, over the standard deviation (of a
    sample, plus 1e-4).
    """
    found = []
    for first in range(0, len(rewards), group):
        own = rewards[first : first + group]
        mean = sum(own) / group
        spread = math.sqrt(sum((r - mean) ** 2 for r in own) / max(1, group - 1))
        found += [(r - mean) / (spread + 1e-4) for r in own]
    return found


def load_reward(name: str) -> Reward:
    """The function of ``module:function``. Raises ``ValueError`` saying what is wrong with the name."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"reward is module:function, not {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it, where torchrun or a script does not
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward {name}: {one_line(error)}") from error
    except Exception as error:  # a module may raise anything while it is imported
        raise ValueError(f"reward {name}: importing {module} raised {one_line(error)}") from error
    if not callable(found):
        raise ValueError(f"reward {name} is no function")
    reward: Reward = found
    return reward


@contextlib.contextmanager
def _generating(model: nn.Module) -> Iterator[None]:
    """The model's own forward, eager, without dropout and gradients."""
    forward = model.__dict__.pop("forward")
    try:
        with torch.no_grad(), _evaluating(model), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        model.forward = forward


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        model.train(training)


def _until_end(tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Up to and with the first token that ends an answer."""
    stop = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
    return list(tokens[:stop])


def _trained(model: nn.Module) -> list[nn.Parameter]:
    # The root may hold gathered parameters, which are other objects than the ones that are trained.
    if isinstance(model, FSDPModule):
        model.reshard()
    return [p for p in model.parameters() if p.requires_grad]


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _set(model: nn.Module, values: Sequence[Tensor]) -> None:
    for parameter, value in zip(_trained(model), values, strict=True):
        _local(parameter).copy_(value)


def _weights_of(batch: Mapping[str, Tensor]) -> Tensor:
    return batch["weights"].sum().round()
