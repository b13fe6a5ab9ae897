"""transformers' Trainer or TRL's SFTTrainer as an arm of the comparison of peers: the same model, rows and order.

``python -m tests.bench.peer_trainers trainer|sft FOLDER [--torch-compile]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main(which: str, folder: Path, *, compiled: bool) -> None:
    """Train until the gate ends it."""
    from datasets import Dataset

    set_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder / "model"), attn_implementation="sdpa", dtype=torch.float32
    )
    model.config.use_cache = False
    rows = [json.loads(line) for line in (folder / "ordered.jsonl").read_text().splitlines()]
    common: dict[str, Any] = dict(
        output_dir=str(folder / "out" / which), max_steps=len(rows), per_device_train_batch_size=1, learning_rate=1e-4,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, adam_beta2=0.95, torch_compile=compiled,
        save_strategy="no", logging_strategy="no", report_to=[], use_cpu=not torch.cuda.is_available(), bf16=False,
        gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    made: Any
    if which == "sft":
        from trl import SFTConfig, SFTTrainer

        class InOrder(SFTTrainer):  # type: ignore[misc]
            def _get_train_sampler(self, dataset: Any = None) -> Any:
                return SequentialSampler(dataset if dataset is not None else self.train_dataset)

        made = InOrder(
            model=model,
            args=SFTConfig(
                **common, max_length=None, packing=False, dataset_kwargs={"skip_prepare_dataset": True}
            ),
            train_dataset=Dataset.from_list([{"input_ids": r["input_ids"]} for r in rows]),
            processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        )
    else:

        class Plain(Trainer):  # type: ignore[misc]
            def _get_train_sampler(self, dataset: Any = None) -> Any:
                return SequentialSampler(dataset if dataset is not None else self.train_dataset)

        def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            ids = torch.tensor([row["input_ids"] for row in batch])
            return {"input_ids": ids, "labels": ids.clone()}

        made = Plain(
            model=model,
            args=TrainingArguments(**common),
            train_dataset=rows,
            data_collator=collate,
        )
    made.train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), compiled="--torch-compile" in sys.argv)
