"""Fine-tuning scripts as users write them, tiny: ``python monitor_hf.py trainer|sft|accelerate OUT
[run_dir]``. Nothing here knows of a launcher.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

torch.set_num_threads(1)
torch.manual_seed(0)

VOCABULARY = 64
#: One length a batch: the third makes torch compile again, with the length dynamic from there on.
LENGTHS = (16, 16, 24, 40)


def tiny() -> torch.nn.Module:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def records(ranks: int = 1) -> list[dict[str, list[int]]]:
    rows = []
    for i, length in enumerate(LENGTHS):
        for j in range(2 * ranks):
            ids = [3 + (7 * i + 3 * j + k) % (VOCABULARY - 3) for k in range(length)]
            rows.append({"input_ids": ids, "labels": ids})
    return rows


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return {key: torch.tensor([row[key] for row in rows]) for key in ("input_ids", "labels")}


def settings(out: str) -> dict[str, object]:
    return {
        "output_dir": out,
        "per_device_train_batch_size": 2,
        "max_steps": len(LENGTHS),
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "logging_strategy": "no",
        "torch_compile": True,
        "torch_compile_backend": "aot_eager",
        "dataloader_pin_memory": False,
    }


def sequential(trainer_class: type) -> type:
    """The trainer with its batches in the order of the data."""

    class Sequential(trainer_class):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return Sequential


def callbacks(run_dir: list[str]) -> list[object]:
    if not run_dir:
        return []
    from cftdiag.monitor import MonitorCallback

    return [MonitorCallback(run_dir=run_dir[0], warmup_steps=1, quiet=True)]


def trainer(out: str, *run_dir: str) -> None:
    """transformers' Trainer; with KILL_AT=N in the environment a rank dies of SIGKILL after step N."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == int(os.environ.get("KILL_AT", "-1")):
                os.kill(os.getpid(), signal.SIGKILL)

    data = records(int(os.environ.get("WORLD_SIZE", "1")))
    arguments = TrainingArguments(**settings(out))
    sequential(Trainer)(
        model=tiny(),
        args=arguments,
        train_dataset=data,
        data_collator=collate,
        callbacks=[*callbacks(list(run_dir)), Dies()],
    ).train()
    print("trained", flush=True)


def sft(out: str, *run_dir: str) -> None:
    """TRL's SFTTrainer."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {f"<{i}>": i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<3>")), pad_token="<0>", eos_token="<1>"
    )
    data = Dataset.from_list([{"input_ids": row["input_ids"]} for row in records()])
    arguments = SFTConfig(**settings(out), max_length=64, shuffle_dataset=False, gradient_checkpointing=False)
    sequential(SFTTrainer)(
        model=tiny(),
        args=arguments,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=callbacks(list(run_dir)),
    ).train()
    print("trained", flush=True)


def accelerate(out: str, *run_dir: str) -> None:
    """accelerate with its own compile setting and gradient accumulation over two batches."""
    from accelerate import Accelerator

    import cftdiag

    accelerator = Accelerator(cpu=True, dynamo_backend="aot_eager", gradient_accumulation_steps=2)
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(records(), batch_size=2, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with cftdiag.Monitor(model, run_dir=run_dir[0], warmup_steps=1, quiet=True):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
    print("trained", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
