"""The repeated blocks of a model: which they are, and which of them are of one kind."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from cftdiag.findings import covers
from cftdiag.recipe.stacks import stacks
from cftdiag.torch_private.wrappers import class_name, strip, unwrap

#: Integer, string and None attributes of a block by which its computation can differ from another block's.
_STRUCTURAL = re.compile(r"window|rope|expert|head|type|sparse|moe|top_k|chunk|causal|pattern")
#: Attributes that number or name a block without changing what it is.
_IDENTITY = {
    "training",
    "layer_idx",
    "layer_index",
    "layer_id",
    "layer_number",
    "block_idx",
    "block_index",
    "index",
    "idx",
}

Blocks = list[tuple[str, torch.nn.Module]]
#: (trait, value) pairs of a kind of block.
Kind = frozenset[tuple[str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockGroup:
    """Blocks of one kind, in model order."""

    label: str
    """The class name, with what sets this kind apart in brackets: ``Gemma3DecoderLayer[sliding_attention]``.
    """
    cls: str
    fqns: tuple[str, ...]


def find_blocks(model: torch.nn.Module, globs: Sequence[str] | None = None) -> Blocks:
    """The blocks of a model as (name without wrappers, module), in model order.

    By default the blocks of every stack (:func:`cftdiag.recipe.stacks.stacks`); with ``globs`` every module
    whose name matches one (``*`` does not cross a dot). ``ValueError`` when nothing is found.
    """
    names = {strip(fqn): module for fqn, module in model.named_modules() if fqn}
    if globs:
        return _matching(names, globs)
    found = stacks(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no repeated blocks to compile; name its blocks with --blocks GLOB"
        )
    return [(strip(fqn), block) for blocks in found.values() for fqn, block in blocks]


def set_module(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    """Replace the submodule called ``name``."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def _matching(names: Mapping[str, torch.nn.Module], globs: Sequence[str]) -> Blocks:
    for glob in globs:
        if not any(covers(glob, fqn) for fqn in names):
            raise ValueError(
                f"no module matches --blocks {glob!r}; module names look like {', '.join(list(names)[:4])}"
            )
    found = {fqn: module for fqn, module in names.items() if any(covers(glob, fqn) for glob in globs)}
    return [(fqn, m) for fqn, m in found.items() if not any(fqn.startswith(f"{outer}.") for outer in found)]


def block_groups(model: torch.nn.Module, blocks: Blocks | None = None) -> list[BlockGroup]:
    """Kinds of block, in order of appearance.

    Two blocks are of one kind when their classes, parameter shapes, submodule classes and structural
    attributes (layer types, windows, rope, experts, every flag) agree. Numbers that only say which block it
    is do not count.
    """
    members: dict[Kind, list[tuple[str, str]]] = collections.defaultdict(list)
    for fqn, block in find_blocks(model) if blocks is None else blocks:
        members[frozenset(traits(block))].append((fqn, class_name(unwrap(block))))
    by_class: dict[str, list[Kind]] = collections.defaultdict(list)
    for kind, found in members.items():
        by_class[found[0][1]].append(kind)
    labels = {kind: label for cls, kinds in by_class.items() for kind, label in _labels(cls, kinds).items()}
    return [
        BlockGroup(label=labels[kind], cls=found[0][1], fqns=tuple(fqn for fqn, _ in found))
        for kind, found in members.items()
    ]


def traits(block: torch.nn.Module) -> Iterable[tuple[str, str]]:
    """(trait, value) pairs that make up the kind of a block."""
    inner = unwrap(block)
    for path, module in inner.named_modules():
        at = f"{path}." if path else ""
        yield f"{path}:class", class_name(module)
        for name, p in module.named_parameters(recurse=False):
            yield f"{at}{name}:shape", f"{'x'.join(map(str, p.shape))} {p.dtype}".replace("torch.", "")
        for name, value in vars(module).items():
            if not name.startswith("_") and name not in _IDENTITY and _is_structural(name, value):
                yield f"{at}{name}", str(value)


def _is_structural(name: str, value: Any) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, (int, str, type(None))) and bool(_STRUCTURAL.search(name))
    )


def _labels(cls: str, kinds: list[Kind]) -> dict[Kind, str]:
    if len(kinds) == 1:
        return {kinds[0]: cls}
    common = frozenset.intersection(*kinds)
    names: dict[Kind, str] = {}
    for number, kind in enumerate(kinds, 1):
        words = list(
            dict.fromkeys(
                word for trait in sorted(kind - common, key=_telling)[:12] for word in _words(*trait)
            )
        )
        others = [{word for trait in k - common for word in _words(*trait)} for k in kinds if k is not kind]
        choices = itertools.chain(
            ((word,) for word in words), *(itertools.combinations(words[:10], n) for n in (2, 3))
        )
        unique = next(
            (choice for choice in choices if not any(other.issuperset(choice) for other in others)),
            (str(number),),
        )
        names[kind] = f"{cls}[{', '.join(unique)}]"
    if len(set(names.values())) < len(kinds):
        return {kind: f"{cls}[{number}]" for number, kind in enumerate(kinds, 1)}
    return names


def _telling(trait: tuple[str, str]) -> tuple[int, int, str]:
    """Sort key: layer types first, then classes of direct children, flags and numbers, deeper classes, shapes
    last; shallow before deep.
    """
    name, value = trait
    path, _, what = name.rpartition(":")
    if name.endswith("type"):
        rank = 0
    elif what == "class":
        rank = 1 if "." not in path else 4
    elif what == "shape":
        rank = 5
    else:
        rank = 3 if value == "None" else 2
    return rank, name.count("."), name


def _words(name: str, value: str) -> tuple[str, ...]:
    """Ways to say a trait, short ones first."""
    path, _, what = name.rpartition(":")
    if what == "class":
        return (value, f"{path}={value}")
    if name.endswith("type"):
        return (value,)
    if what == "shape":
        return (f"{path}={value}",)
    last = name.rsplit(".", 1)[-1]
    return ({"True": last, "False": f"no {last}"}.get(value, f"{last}={value}"),)
