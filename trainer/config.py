"""Every option of a training run: one frozen dataclass, whose field names are the flags and the YAML keys."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.options import AC_MODES, DTYPE_ALIASES, DTYPES, DYNAMIC, METHODS, OBJECTIVES, SCOPES

EXIT_INTERRUPTED = 130
"""Exit code of the trainer's programs after Ctrl-C, as shells have it."""

SHORT_FORMS = ("osft", "lora")
"""Methods with a flag of their own: ``--lora`` is ``--method lora``."""
METHOD_OPTIONS: dict[str, tuple[str, ...]] = {
    "full": (), "osft": ("osft",), "lora": ("lora",), "qlora": ("lora", "qlora"), "qat": ("qat",),
}  # fmt: skip
"""What the names of the options begin with that a method reads."""
NOT_THERE = {
    "context_parallel": "rows are not split over ranks: torch's attention over parts of a row takes no mask, and packed rows need "
    "one; give a lower --max-tokens-per-gpu, --ac full or more ranks",
    "expert_parallel": "experts are not spread over ranks; FSDP2 shards their weights as all others, leave it out",
    "pipeline_parallel": "layers are not spread over ranks; FSDP2 shards all of them, leave it out",
    "sequence_parallel": "between the split layers of --tensor-parallel each rank has the whole row; leave it out",
}
"""Options of other trainers that this one has not, and what is said of them."""
_OF_COMPILING = ("compile_backend", "dynamic", "compile_cache", "measure_eager")
_OF_KNOWN_ROWS = ("token_cache",)
DPO_LOSSES = ("sigmoid", "ipo", "orpo")
GRPO_LOSSES = ("dapo", "grpo", "dr_grpo")
TRACKERS = ("tensorboard", "wandb", "mlflow")
TRAIN_DTYPES = (*DTYPES, "float64")
TRAIN_DTYPE_ALIASES = {**DTYPE_ALIASES, "fp64": "float64"}
_NOT_NEGATIVE = (
    *(
        "checkpoint_every",
        "validate_every",
        "osft_leak_every",
        "num_workers",
        "warmup_steps",
        "skip_nonfinite",
        "measure_eager",
    ),
    *(
        "learning_rate",
        "weight_decay",
        "max_grad_norm",
        "min_lr_ratio",
        "eps",
        "lora_alpha",
        "dpo_beta",
        "grpo_beta",
        "grpo_clip",
    ),
)


def _option(default: Any, text: str, choices: tuple[str, ...] | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """What to train, on what, how. Raises ``ValueError`` when two options contradict each other."""

    # what
    model_name_or_path: str | None = _option(None, "local directory or Hugging Face id of a causal LM")
    demo: bool = _option(False, "train the embedded tiny Qwen3 with a byte tokenizer on generated data")
    random_init: bool = _option(False, "initialise from config.json instead of loading weights")
    attn: str = _option(
        "auto",
        "attention: auto (sdpa where the architecture takes it, else eager) or a transformers name, or varlen",
    )
    train_dtype: str = _option(
        "float32", "dtype that parameters and optimizer states are kept in", TRAIN_DTYPES
    )
    dtype: str | None = _option(
        None, "dtype of forward and backward; default bfloat16 on CUDA, train-dtype on CPU", TRAIN_DTYPES
    )
    save_dtype: str | None = _option(
        None, "dtype of the exported model; default: the one the model came in", TRAIN_DTYPES
    )
    # data
    data_path: str | None = _option(
        None,
        "JSONL with `messages`, `prompt` and `completion`, `text`, or `input_ids` and `labels`; or a directory that `datasets` saved",
    )
    validation_path: str | None = _option(None, "the validation set, as data-path")
    chat_template: str | None = _option(
        None, "file with the chat template to use, and to export, instead of the tokenizer's own"
    )
    train_on: str | None = _option(
        None,
        "what is learned: all, what the assistant says, or the completion only; default: assistant for `messages`, "
        "completion for `prompt`, all for `text`",
        ("all", "assistant", "completion"),
    )
    validation_split: float = _option(
        0.0, "share of data-path held out for validation, taken from the end of a seeded shuffle"
    )
    batch_size: int = _option(8, "samples per optimizer step, over all ranks")
    max_tokens_per_gpu: int = _option(
        4096, "most tokens in one packed row; a batch takes as many rows as it needs"
    )
    pad_to_multiple_of: int = _option(8, "packed rows are padded to a multiple of this")
    length_buckets: tuple[int, ...] = _option((), "pad packed rows up to one of these lengths")
    bad_records: str = _option("fatal", "what to do with a malformed record", ("fatal", "skip"))
    over_long: str = _option(
        "fatal",
        "what to do with a sample longer than max-tokens-per-gpu (split: into several samples)",
        ("fatal", "drop", "truncate", "split"),
    )
    streaming: bool = _option(
        False, "keep only an index of the data in memory and read samples from the file"
    )
    token_cache: str | None = _option(
        None, "directory that tokenized data is kept in, by content; default: tokens in output-dir"
    )
    num_workers: int = _option(0, "processes that collate this rank's rows")
    # objective
    objective: str = _option(
        "sft",
        "what is learnt: sft (labelled tokens), pretrain (all tokens of texts), dpo (a better answer against a worse one), "
        "grpo (sampled answers by their reward)",
        OBJECTIVES,
    )
    dpo_loss: str = _option("sigmoid", "of a pair: DPO's own, IPO's, or ORPO's (no reference)", DPO_LOSSES)
    dpo_beta: float = _option(
        0.1, "how much the reference holds (IPO: tau; ORPO: the weight of the odds ratio)"
    )
    reward: str | None = _option(
        None,
        "for grpo, module:function: called with prompts, completions and the data's other columns; a number each",
    )
    grpo_generations: int = _option(8, "answers sampled to each prompt; batch-size counts prompts")
    grpo_completion_tokens: int = _option(256, "most tokens of an answer")
    grpo_temperature: float = _option(1.0, "of sampling")
    grpo_loss: str = _option(
        "dapo", "mean over all tokens, over answers, or by the longest answer allowed", GRPO_LOSSES
    )
    grpo_clip: float = _option(0.2, "the ratio to the sampling policy is clipped to 1 - clip, 1 + clip")
    grpo_iterations: int = _option(
        1, "updates on the answers of one rollout; each is an optimizer step of max-steps"
    )
    grpo_beta: float = _option(
        0.0, "weight of the divergence from the policy before the first step; 0: none is kept"
    )
    # method
    method: str | None = _option(None, "what is trained, and in which form; default: full", METHODS)
    osft: bool = _option(
        False,
        "the same as method osft: orthogonal subspace fine-tuning, which trains the low singular directions of the "
        "target weights",
    )
    osft_unfreeze_rank_ratio: float = _option(
        0.25, "share of singular directions that are trained; 1 leaves a plain Linear, 0 freezes the target"
    )
    osft_task: str | None = _option(
        None,
        "K/N: this is the K-th of N tasks in turn; its unfreeze ratio is on the line between osft-task-ratios",
    )
    osft_task_ratios: tuple[str, ...] = _option(
        ("0.7", "0.3"), "unfreeze ratios of the first and of the last task, for osft-task"
    )
    osft_beside: str = _option(
        "all",
        "what is trained in full beside the targets: all, what is inside of the blocks (not embeddings, last norm and "
        "lm_head), or none",
        ("all", "blocks", "none"),
    )
    osft_ranks: str = _option(
        "uniform", "one ratio for all targets, or by layer importance", ("uniform", "adaptive")
    )
    osft_target_patterns: tuple[str, ...] = _option(
        (), "substrings of the targets' names; default: every Linear and every expert's weight in the blocks"
    )
    osft_rank_pattern: tuple[str, ...] = _option(
        (),
        "PATTERN=RATIO: another unfreeze ratio for targets whose name contains the pattern; may be repeated",
    )
    osft_upcast_dtype: str = _option("float32", "dtype of the decomposition", TRAIN_DTYPES)
    osft_redecompose: str | None = _option(
        None, "checkpoint of another task to start from: its weights made dense, then decomposed anew"
    )
    osft_transient_mb: int = _option(256, "most memory in MiB that one bucket of the projection gathers")
    osft_leak_every: int = _option(
        10, "steps between two measurements of the leak into the frozen space; 0: never"
    )
    lora: bool = _option(False, "the same as method lora: low-rank adapters on the target weights")
    lora_rank: int = _option(16, "rank of the adapters")
    lora_alpha: float = _option(32.0, "scale of the adapters is alpha / rank")
    lora_target_patterns: tuple[str, ...] = _option(
        (), "as osft-target-patterns; the weights of experts get no adapters"
    )
    qlora_block_size: int = _option(64, "weights of 4 bits that share a scale, in qlora")
    qat_scheme: str = _option(
        "int8-int4",
        "what qat trains for: inputs of 8 bits (by token, when they come) and weights of 4, or weights of 4 bits alone",
        ("int8-int4", "int4"),
    )
    qat_group_size: int = _option(32, "inputs of a weight of 4 bits that share a scale, in qat")
    qat_target_patterns: tuple[str, ...] = _option((), "as osft-target-patterns, of qat")
    # compile
    compile_model: bool = _option(False, "compile every block: the same as compile-scope block")
    compile_scope: str | None = _option(None, "what is compiled", SCOPES)
    compile_backend: str | None = _option(None, "backend; default: $TORCH_COMPILE_BACKEND, else inductor")
    dynamic: str = _option(
        "true", "symbolic sizes from the first compile on (auto: torch's None)", tuple(DYNAMIC)
    )
    compile_cache: str | None = _option(None, "file that compiled artifacts are loaded from and saved to")
    measure_eager: int = _option(
        0, "run this many steps eager after the warm-up, and say what compiling gains and when it has paid"
    )
    compile_plan: str | None = _option(
        None,
        "plan written by `cftdiag check --plan`: its settings are applied, its regimes warmed before step 0",
    )
    preflight: bool = _option(
        False, "check this very configuration before step 0; stop when a block would break"
    )
    loss_chunks: int = _option(
        8, "lm_head and cross entropy run on this many chunks of the row, one at a time"
    )
    # parallel
    ac: str = _option(
        "none",
        "activation checkpointing (selective: save matmul and attention outputs)",
        AC_MODES,
    )
    device: str = _option("auto", "where to train", ("auto", "cpu", "cuda"))
    deterministic: bool = _option(
        False, "the same bits from the same start: only algorithms that are, an error where torch has none"
    )
    collective_timeout: int | None = _option(
        None,
        "seconds after which a rank no longer waits for another; default: torch's, 10 min on GPUs, else 30",
    )
    replicas: int = _option(
        1, "HSDP: number of model replicas; each is sharded over world size / replicas ranks"
    )
    tensor_parallel: int = _option(
        1,
        "split the weights of each block over N ranks, which then have the same rows; dense models, method full",
    )
    grad_sync: str = _option(
        "every",
        "reduce-scatter gradients after every microstep, or after the last one: less traffic, whole gradients in memory meanwhile",
        ("every", "last"),
    )
    # loop
    max_epochs: int | None = _option(
        None, "stop after this many passes; default 1 when neither max-steps nor max-tokens is given"
    )
    max_steps: int | None = _option(None, "stop after this many optimizer steps")
    max_tokens: int | None = _option(None, "stop after this many tokens")
    learning_rate: float | None = _option(
        None, "peak learning rate; default 2e-5, 1e-6 for objectives dpo and grpo, 1e-3 with --demo"
    )
    beta1: float = _option(0.9, "AdamW")
    beta2: float = _option(0.95, "AdamW")
    eps: float = _option(1e-8, "AdamW")
    weight_decay: float = _option(0.0, "AdamW")
    max_grad_norm: float = _option(1.0, "gradients are clipped to this norm; 0: measured only")
    skip_nonfinite: int = _option(
        0,
        "leave out at most N steps of this start whose loss or gradient is not finite; 0: stop at the first",
    )
    lr_scheduler: str = _option("constant", "after warm-up", ("constant", "linear", "cosine"))
    warmup_steps: int = _option(0, "steps of linear warm-up")
    min_lr_ratio: float = _option(0.0, "the schedule ends at this share of the peak")
    seed: int = _option(42, "seed of initialisation and data order")
    validate_every: int = _option(0, "steps between validations; 0: at the end of each epoch")
    # output
    output_dir: str = _option("OUT", "metrics.jsonl, run/, checkpoints/ and hf/ go here")
    checkpoint_every: int = _option(0, "steps between checkpoints; 0: at the end only")
    checkpoint_epochs: bool = _option(False, "a checkpoint at the end of each epoch; all of these are kept")
    checkpoint_best: bool = _option(
        True,
        "with a validation set: a checkpoint whenever the validation loss is the lowest so far; the best is kept",
    )
    keep_checkpoints: int = _option(2, "newest checkpoints kept, beside those of epochs and the best")
    resume: str | None = _option(
        None,
        "checkpoint to continue from, also a URL that fsspec reads, or `auto` for the newest in output-dir",
    )
    tracker: tuple[str, ...] = _option((), "also log to tensorboard, wandb or mlflow; may be repeated")
    profile_steps: str | None = _option(
        None, "write a profiler trace of these steps (`3-5`) to output-dir/profile, one a rank"
    )
    export: bool = _option(True, "write a plain Hugging Face model to output-dir/hf at the end")

    def __post_init__(self) -> None:
        for name in ("train_dtype", "dtype", "save_dtype", "osft_upcast_dtype"):
            value = getattr(self, name)
            object.__setattr__(self, name, TRAIN_DTYPE_ALIASES.get(value, value))
        for field in dataclasses.fields(self):
            _check_value(field, getattr(self, field.name))
        self._decide_method()
        if self.demo and self.objective == "grpo" and self.reward is None:
            object.__setattr__(self, "reward", "trainer.demo:reward")
        self._check_pairs()

    def _decide_method(self) -> None:
        """One method under all of its names."""
        said = [name for name in SHORT_FORMS if getattr(self, name)]
        named = list(dict.fromkeys([self.method, *said] if self.method is not None else said))
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} are two methods; give one of them")
        object.__setattr__(self, "method", named[0] if named else "full")
        for name in SHORT_FORMS:
            object.__setattr__(self, name, name == self.method)

    def _check_pairs(self) -> None:
        if self.osft_task is not None:
            task_ratio(self.osft_task, self.osft_task_ratios)
            if self.osft_unfreeze_rank_ratio != _default("osft_unfreeze_rank_ratio"):
                raise ValueError(
                    "osft-task decides the ratio that osft-unfreeze-rank-ratio names; give one of them"
                )
        if self.method == "qat" and "float64" in (self.train_dtype, self.dtype):
            raise ValueError(
                "qat rounds float32 and bfloat16 only; give another train-dtype or dtype than float64"
            )
        if self.tensor_parallel > 1 and self.method != "full":
            raise ValueError(
                f"tensor-parallel splits the layers of the plain model; method {self.method} has others, leave out one of the two"
            )
        if self.tensor_parallel > 1 and self.ac != "none" and "block" in self.scope:
            raise ValueError(
                f"ac {self.ac} inside of a compiled block does not go with tensor-parallel in torch; leave out ac, or compile no blocks"
            )
        if self.tensor_parallel > 1 and self.scope in ("model", "model+loss"):
            raise ValueError(
                f"tensor-parallel splits blocks that are compiled one by one; compile-scope {self.scope} has one region over all"
            )
        if self.tensor_parallel > 1 and self.objective == "grpo":
            raise ValueError(
                "tensor-parallel splits blocks over ranks, and objective grpo trains in one process; leave out one of the two"
            )
        if self.tensor_parallel > 1 and self.compile_plan is not None:
            raise ValueError("a compile plan knows nothing of tensor-parallel; leave out one of the two")
        if self.osft_redecompose is not None and not self.osft:
            raise ValueError(
                "osft-redecompose starts an OSFT run; give osft too, or export the checkpoint and start from the result"
            )
        if (
            self.compile_model
            and self.compile_scope is not None
            and "block" not in self.compile_scope
            and self.compile_scope != "block"
        ):
            raise ValueError(
                f"compile-model means compile-scope block, but compile-scope is {self.compile_scope!r}; give one of them"
            )
        self._check_objective()
        if self.demo and (self.model_name_or_path or self.data_path):
            raise ValueError("demo brings its own model and data; leave out model-name-or-path and data-path")
        if self.validation_path and self.validation_split:
            raise ValueError(
                "validation-path and validation-split both name a validation set; give one of them"
            )
        if not 0 <= self.osft_unfreeze_rank_ratio <= 1:
            raise ValueError(
                f"osft-unfreeze-rank-ratio is a share between 0 and 1, not {self.osft_unfreeze_rank_ratio}"
            )
        if not 0 <= self.validation_split < 1:
            raise ValueError(f"validation-split is a share from 0 to below 1, not {self.validation_split}")
        if self.length_buckets and max(self.length_buckets) < self.row_capacity:
            raise ValueError(
                f"the largest of length-buckets ({max(self.length_buckets)}) must hold max-tokens-per-gpu ({self.row_capacity})"
            )
        if self.row_capacity < 1:
            raise ValueError(
                f"max-tokens-per-gpu ({self.max_tokens_per_gpu}) is below pad-to-multiple-of ({self.pad_to_multiple_of})"
            )
        for name in (
            "batch_size",
            "pad_to_multiple_of",
            "loss_chunks",
            "replicas",
            "tensor_parallel",
            "lora_rank",
            "qlora_block_size",
            "qat_group_size",
            "osft_transient_mb",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{_flag(name)} must be at least 1, not {getattr(self, name)}")
        if unknown := [name for name in self.tracker if name not in TRACKERS]:
            raise ValueError(f"tracker must be one of {', '.join(TRACKERS)}, not {unknown[0]!r}")
        if self.profile_steps is not None:
            profile_range(self.profile_steps)
        for name in _NOT_NEGATIVE:
            if (value := getattr(self, name)) is not None and not 0 <= value < math.inf:
                raise ValueError(f"{_flag(name)} must be 0 or more, not {value}")
        if abs(self.seed) >= 2**32:
            raise ValueError(f"seed must be below 2**32, not {self.seed}")
        for name in ("max_epochs", "max_steps", "max_tokens", "collective_timeout"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{_flag(name)} must be at least 1, not {getattr(self, name)}")

    def _check_objective(self) -> None:
        if self.objective in ("sft", "pretrain"):
            return
        if self.train_on is not None:
            raise ValueError(f"objective {self.objective} learns from answers alone; leave out train-on")
        if self.over_long in ("truncate", "split"):
            raise ValueError(
                f"a row of objective {self.objective} cannot be cut; give over-long fatal or drop, not {self.over_long}"
            )
        if self.objective == "dpo" and self.dpo_beta <= 0:
            raise ValueError(f"dpo-beta must be above 0, not {self.dpo_beta}")
        if self.objective == "grpo":
            self._check_grpo()

    def _check_grpo(self) -> None:
        if self.grpo_generations < 2:
            raise ValueError(
                f"grpo-generations must be at least 2, not {self.grpo_generations}: answers are compared with each other"
            )
        for name in ("grpo_completion_tokens", "grpo_iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_flag(name)} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.grpo_temperature < math.inf:
            raise ValueError(f"grpo-temperature must be above 0, not {self.grpo_temperature}")
        if self.prompt_capacity < 1:
            raise ValueError(
                f"grpo-completion-tokens {self.grpo_completion_tokens} leaves no room for a prompt in rows of "
                f"{self.row_capacity} tokens; give less, or a higher max-tokens-per-gpu"
            )
        if self.streaming or self.num_workers:
            raise ValueError("objective grpo makes its rows itself; leave out streaming and num-workers")

    def without_effect(self) -> list[str]:
        """Options that were set to something and that nothing of this run reads: lines to tell."""
        lines = []
        for objective in ("dpo", "grpo"):
            own = [f.name for f in dataclasses.fields(self) if f.name.startswith(f"{objective}_")]
            own += ["reward"] if objective == "grpo" else []
            given = [_flag(name) for name in own if getattr(self, name) != _default(name)]
            if given and objective != self.objective:
                lines.append(f"{', '.join(given)}: no effect without --objective {objective}")
        for group in dict.fromkeys(group for groups in METHOD_OPTIONS.values() for group in groups):
            own = [f.name for f in dataclasses.fields(self) if f.name.startswith(f"{group}_")]
            given = [_flag(name) for name in own if getattr(self, name) != _default(name)]
            if given and group not in METHOD_OPTIONS[self.method_name]:
                flag = f"--{group}" if group in SHORT_FORMS else f"--method {group}"
                lines.append(f"{', '.join(given)}: no effect without {flag}")
        if (
            self.method == "osft"
            and self.osft_task is None
            and self.osft_task_ratios != _default("osft_task_ratios")
        ):
            lines.append("osft-task-ratios: no effect without --osft-task")
        for needed, names in (
            ("--compile-model or --compile-scope" if self.scope == "none" else "", _OF_COMPILING),
            (
                "a validation set" if not (self.validation_path or self.validation_split) else "",
                ("validate_every",),
            ),
            ("--lr-scheduler linear or cosine" if self.lr_scheduler == "constant" else "", ("min_lr_ratio",)),
            ("an objective whose rows are known before" if self.objective == "grpo" else "", _OF_KNOWN_ROWS),
        ):
            given = [_flag(name) for name in names if getattr(self, name) != _default(name)]
            if needed and given:
                lines.append(f"{', '.join(given)}: no effect without {needed}")
        return lines

    def without_effect_in(self, steps: int) -> list[str]:
        """The same of what a run of so many steps never comes to."""
        if 0 < steps <= self.warmup_steps:
            return [
                f"warmup-steps {self.warmup_steps} is all of the {steps} steps of this run: the learning rate never stays at "
                "its peak"
            ]
        return []

    @property
    def method_name(self) -> str:
        """The method, one of :data:`cftdiag.options.METHODS`."""
        assert self.method is not None
        return self.method

    @property
    def unfreeze_ratio(self) -> float:
        """Share of the singular directions that OSFT trains: that of this task, or the one for all tasks."""
        if self.osft_task is not None:
            return task_ratio(self.osft_task, self.osft_task_ratios)
        return self.osft_unfreeze_rank_ratio

    @property
    def scope(self) -> str:
        """What is compiled, one of :data:`SCOPES`."""
        return self.compile_scope or ("block" if self.compile_model else "none")

    @property
    def backend(self) -> str:
        """Name of the compile backend; torch does not read ``TORCH_COMPILE_BACKEND`` by itself, so that it is
        read here.
        """
        return self.compile_backend or os.environ.get("TORCH_COMPILE_BACKEND") or "inductor"

    @property
    def peak_learning_rate(self) -> float:
        """``learning_rate`` or its default: a model at random initialisation (the demo) needs another than
        one that is fine-tuned, and one that learns from preferences or rewards a lower one.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-3 if self.demo else 2e-5 if self.objective in ("sft", "pretrain") else 1e-6

    @property
    def row_capacity(self) -> int:
        """Most tokens of one row: ``max_tokens_per_gpu`` rounded down to the padding multiple."""
        return self.max_tokens_per_gpu // max(1, self.pad_to_multiple_of) * self.pad_to_multiple_of

    @property
    def prompt_capacity(self) -> int:
        """Most tokens of a sample of the data: an answer that is written to it needs room in the row."""
        return self.row_capacity - (self.grpo_completion_tokens if self.objective == "grpo" else 0)

    @property
    def updates(self) -> int:
        """Optimizer steps on the same samples."""
        return self.grpo_iterations if self.objective == "grpo" else 1

    @property
    def epochs(self) -> int | None:
        """Passes over the data, None for as many as the other limits need."""
        if self.max_epochs is None and self.max_steps is None and self.max_tokens is None:
            return 1
        return self.max_epochs

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict that :meth:`from_mapping` reads."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrainConfig:
        """From a dict with the names of the flags (``-`` and ``_`` are the same); raises ``ValueError`` for
        an unknown or mistyped one.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"a configuration is a mapping of options, not {type(values).__name__}")
        fields = {f.name: f for f in dataclasses.fields(cls)}
        known: dict[str, Any] = {}
        for key, value in values.items():
            name = str(key).replace("-", "_")
            if name not in fields:
                if name in NOT_THERE:
                    raise ValueError(f"{_flag(name)}: {NOT_THERE[name]}")
                near = difflib.get_close_matches(name, fields, n=1)
                guess = f"did you mean {_flag(near[0])}? They" if near else "the options"
                raise ValueError(f"unknown option {key!r}; {guess} are listed by `python -m trainer --help`")
            known[name] = tuple(value) if isinstance(value, list) else value
        return cls(**known)

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> TrainConfig:
        """Read a YAML file; ``overrides`` win. Raises ``ValueError`` for a missing or malformed file."""
        return cls.from_mapping(over(read_yaml(path), overrides))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file, keys with underscores; 1e-5 is a number, as in YAML 1.2 and JSON. Raises
    ``ValueError`` naming the file when there is none.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    # PyYAML keeps to YAML 1.1, where a number with an exponent needs a point and a sign
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)  # a SafeLoader
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {type(values).__name__}, not a mapping of options")
    return {str(k).replace("-", "_"): v for k, v in values.items()}


def over(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``file`` with what is ``given`` instead; a method that is given replaces the file's, whichever name either
    goes by.
    """
    kept = dict(file)
    if given.get("method") is not None or any(given.get(name) for name in SHORT_FORMS):
        kept = {name: value for name, value in kept.items() if name not in ("method", *SHORT_FORMS)}
    elif any(given.get(name) is False and kept.get("method") == name for name in SHORT_FORMS):
        del kept["method"]
    return {**kept, **given}


def task_ratio(task: str, ends: tuple[str, ...]) -> float:
    """The unfreeze ratio of task ``K/N`` on the line from the first task's to the last one's: later tasks train
    fewer directions, because there is more to keep. Raises ``ValueError``.

    The ends 0.7 and 0.3 are those of peft's example for three tasks (orthogonal_subspace_learning).
    """
    number, _, count = task.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"osft-task is the number of this task of all, such as 2/3, not {task!r}")
    try:
        first, last = (float(end) for end in ends)
    except ValueError:
        first = last = math.nan
    if not (0 <= first <= 1 and 0 <= last <= 1):
        raise ValueError(
            f"osft-task-ratios are two shares between 0 and 1 such as 0.7,0.3, not {','.join(ends)!r}"
        )
    done = (int(number) - 1) / max(1, int(count) - 1)
    return first + done * (last - first)


def profile_range(text: str) -> range:
    """The optimizer steps of ``--profile-steps``: ``3-5`` is 3, 4 and 5. Raises ``ValueError``."""
    first, dash, last = text.partition("-")
    if (
        not first.isdigit()
        or not (last.isdigit() if dash else True)
        or not 1 <= int(first) <= int(last or first)
    ):
        raise ValueError(f"profile-steps is a range of optimizer steps such as 3-5, not {text!r}")
    return range(int(first), int(last or first) + 1)


def _default(name: str) -> Any:
    return TrainConfig.__dataclass_fields__[name].default


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _check_value(field: dataclasses.Field[Any], value: Any) -> None:
    """Types as annotated; a YAML file may hold anything, so that this runs for every construction."""
    kind = str(field.type)
    if value is None:
        if "None" not in kind:
            raise ValueError(f"{_flag(field.name)} needs a value")
        return
    base = kind.removesuffix(" | None")
    if base.startswith("tuple"):
        inner = int if "int" in base else str
        good = isinstance(value, tuple) and all(
            isinstance(v, inner) and not isinstance(v, bool) for v in value
        )
        expected = f"a list of {inner.__name__}"
    else:
        types: dict[str, Any] = {"bool": bool, "int": int, "float": (int, float), "str": str}
        good = isinstance(value, types[base]) and (base == "bool" or not isinstance(value, bool))
        expected = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "text"}[base]
    if not good:
        raise ValueError(f"{_flag(field.name)} must be {expected}, not {value!r}")
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"{_flag(field.name)} must be one of {', '.join(choices)}, not {value!r}")
