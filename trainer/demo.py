"""The embedded default: a tiny Qwen3, a byte tokenizer and a small data set, all made here. ``python -m
trainer.demo DIR`` writes them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIALS = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>")
# `generation` marks what the assistant said, so that only this is learned.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}"
    "{% else %}<|user|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_WORDS = "amber basin cedar delta ember fjord grove haven inlet jetty knoll ledge marsh north orbit plume quill ridge shore thorn umbra vale".split()


def data_of(directory: Path, objective: str) -> Path:
    """The demo's data for an objective."""
    return directory / {"pretrain": "text.jsonl", "dpo": "pairs.jsonl", "grpo": "prompts.jsonl"}.get(
        objective, "train.jsonl"
    )


def write_texts(path: Path, *, count: int = 240, seed: int = 0) -> None:
    """A JSONL file of plain texts: the same questions with their answers."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            lines = [" ".join(rng.choice((_sum, _reverse, _count))(rng)) for _ in range(rng.randint(1, 4))]
            file.write(json.dumps({"text": "\n".join(lines)}) + "\n")


def write_pairs(path: Path, *, count: int = 240, seed: int = 0) -> None:
    """A JSONL file of questions with a right answer and a wrong one, which answers another question."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            kind = rng.choice((_sum, _reverse, _count))
            (question, right), (_, wrong) = kind(rng), kind(rng)
            while wrong == right:
                _, wrong = kind(rng)
            row = {
                "prompt": [{"role": "user", "content": question}],
                "chosen": [{"role": "assistant", "content": right}],
                "rejected": [{"role": "assistant", "content": wrong}],
            }
            file.write(json.dumps(row) + "\n")


def write_prompts(path: Path, *, count: int = 240, seed: int = 0) -> None:
    """A JSONL file of prompts that ask for a letter, with the letter in a column of its own."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            letter = rng.choice("abc")
            prompt = [{"role": "user", "content": f"Write {letter} and nothing else."}]
            file.write(json.dumps({"prompt": prompt, "letter": letter}) + "\n")


def reward(
    prompts: Sequence[Any], completions: Sequence[Any], letter: Sequence[str], **_columns: Any
) -> list[float]:
    """A reward that can be verified, in the form that TRL's have too: the share of an answer's characters that are
    the letter asked for.
    """
    texts = [answer if isinstance(answer, str) else answer[-1]["content"] for answer in completions]
    return [text.count(wanted) / max(1, len(text)) for text, wanted in zip(texts, letter, strict=True)]


def write_data(path: Path, *, count: int = 240, seed: int = 0) -> None:
    """A JSONL file of short conversations: sums, reversals, counting. Lengths vary, as in real data."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            messages = []
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                question, answer = rng.choice((_sum, _reverse, _count))(rng)
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")


def _sum(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(100), rng.randrange(100)
    return f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."


def _reverse(rng: random.Random) -> tuple[str, str]:
    words = rng.sample(_WORDS, rng.randint(2, 6))
    return f"Say backwards: {' '.join(words)}", " ".join(reversed(words))


def _count(rng: random.Random) -> tuple[str, str]:
    start, step = rng.randrange(20), rng.randint(1, 5)
    return f"Count from {start} in steps of {step}.", ", ".join(
        str(start + step * i) for i in range(rng.randint(4, 12))
    )


def tokenizer() -> Any:
    """A byte-level tokenizer (256 bytes and four special tokens) with a chat template, as transformers knows
    it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(SPECIALS)}
    vocabulary |= {
        symbol: len(SPECIALS) + i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIALS))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=SPECIALS[0], eos_token=SPECIALS[3], chat_template=TEMPLATE
    )


def config(**overrides: Any) -> Any:
    """The tiny Qwen3: four blocks, 64 wide, untied."""
    from transformers import Qwen3Config

    shape = dict(
        hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=272,
        max_position_embeddings=4096, tie_word_embeddings=False, pad_token_id=0, bos_token_id=None, eos_token_id=3,
    )  # fmt: skip
    return Qwen3Config(**{**shape, **overrides})


def write(directory: str | Path) -> Path:
    """Config, tokenizer and the data of each objective into ``directory``; what is there is not written again. Returns
    the directory.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "train.jsonl").exists():
        config().save_pretrained(directory)
        tokenizer().save_pretrained(directory)
        write_data(directory / "train.jsonl")
    for objective, write_rows in (("pretrain", write_texts), ("dpo", write_pairs), ("grpo", write_prompts)):
        if not (path := data_of(directory, objective)).exists():
            write_rows(path)
    return directory


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m trainer.demo DIR")
    print(write(sys.argv[1]))
