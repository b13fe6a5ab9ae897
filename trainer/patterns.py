"""Small tasks on byte strings, for experiments that must fit a CPU: each answers six letters with six
letters, by a rule of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

LETTERS = "abcdefghijklmnop"
LENGTH = 6

Rule = Callable[[str], str]


def _shifted(by: int) -> Rule:
    return lambda text: "".join(LETTERS[(LETTERS.index(c) + by) % len(LETTERS)] for c in text)


def permutation(seed: int) -> Rule:
    """A substitution of the letters, drawn from ``seed``; two seeds contradict each other on almost every
    letter.
    """
    images = list(LETTERS)
    random.Random(f"permutation/{seed}").shuffle(images)
    table = str.maketrans(LETTERS, "".join(images))
    return lambda text: text.translate(table)


#: What a base model learns: several rules, told apart by the word in front.
BASE: Mapping[str, Rule] = {"copy": lambda text: text, "next": _shifted(1), "prev": _shifted(-1)}


def write(path: Path, rules: Mapping[str, Rule], *, count: int, seed: int) -> Path:
    """A JSONL file of ``count`` conversations such as ``copy abcabc`` -> ``abcabc``, evenly over ``rules``;
    returns ``path``.
    """
    rng = random.Random(f"{seed}/{path.name}")
    words = list(rules)
    with open(path, "w", encoding="utf-8") as file:
        for i in range(count):
            word = words[i % len(words)]
            text = "".join(rng.choices(LETTERS, k=LENGTH))
            turns = [
                {"role": "user", "content": f"{word} {text}"},
                {"role": "assistant", "content": rules[word](text)},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path
