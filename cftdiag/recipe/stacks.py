"""The stacks of a model: each run of repeated blocks that it is made of.

A model has as many as it was built with: an encoder and a decoder, a vision tower and a language model, the
stages of a hierarchical one. A block is a module of the model's own (not one of ``torch.nn``) with modules
inside; what lies inside a block, such as the experts of a mixture, is part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from torch import nn

from cftdiag.torch_private.wrappers import unwrap

_LISTS = (nn.ModuleList, nn.ModuleDict)
_ROWS = (*_LISTS, nn.Sequential)
#: Block names and modules in model order.
Named = list[tuple[str, nn.Module]]
Kinds = tuple[type[nn.Module], ...]
Test = Callable[[nn.Module], bool]


def stacks(model: nn.Module) -> dict[str, Named]:
    """Name of a stack -> (name, module) of its blocks, in model order; {} when the model has none.

    The first of these that exists: lists of composite modules, and each ``nn.Sequential`` that repeats a
    class of them; modules of one class that occurs more than once; lists of anything else. A list inside a
    list belongs to the outer one (an entry may be None), unless the outer one's entries are stages, which
    hold lists of whole blocks.
    """
    found = dict(_rows("", model, _ROWS, is_composite))
    if found:
        return found
    repeated = _repeated(model)
    if repeated:
        return {"": repeated}
    return dict(_rows("", model, _LISTS, lambda module: True))


def is_composite(module: nn.Module) -> bool:
    """True for a module of the model's own that has modules inside."""
    inner = unwrap(module)
    return not type(inner).__module__.startswith("torch.nn.modules.") and any(True for _ in inner.children())


def _is_whole_block(module: nn.Module) -> bool:
    """True for a composite module of composite modules, as a transformer's layer is and its expert is not."""
    return is_composite(module) and any(is_composite(child) for child in unwrap(module).children())


def _rows(name: str, module: nn.Module, kinds: Kinds, wanted: Test) -> Iterator[tuple[str, Named]]:
    """(name, blocks) of the outermost lists in a module, itself included."""
    entries = [(fqn, m) for fqn, m in _entries(name, module, kinds) if wanted(m)]
    classes = {type(unwrap(m)) for _, m in entries}
    repeats = len(classes) < len(entries) or not isinstance(module, nn.Sequential)
    if not isinstance(module, kinds) or not entries or not repeats:
        for key, child in module.named_children():
            yield from _rows(_join(name, key), child, kinds, wanted)
        return
    plain: Named = []
    for fqn, entry in entries:
        inside = list(_stage(fqn, entry))
        if inside:
            yield from inside
        else:
            plain.append((fqn, entry))
    if plain:
        yield name, plain


def _stage(name: str, module: nn.Module) -> Iterator[tuple[str, Named]]:
    """(name, blocks) of the lists in a stage; none where the module is a block itself.

    A stage repeats one class of whole blocks. A block's own list holds its parts: experts, or layers of
    different classes.
    """
    for key, child in module.named_children():
        path = _join(name, key)
        blocks = list(_entries(path, child, _ROWS)) if isinstance(child, _ROWS) else []
        classes = {type(unwrap(block)) for _, block in blocks}
        if len(blocks) > 1 and len(classes) == 1 and all(_is_whole_block(block) for _, block in blocks):
            yield path, blocks
        else:
            yield from _stage(path, child)


def _entries(name: str, row: nn.Module, kinds: Kinds) -> Iterator[tuple[str, nn.Module]]:
    for key, entry in row.named_children():  # leaves out entries that are None
        path = _join(name, key)
        if isinstance(entry, kinds):
            yield from _entries(path, entry, kinds)
        else:
            yield path, entry


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _repeated(model: nn.Module) -> Named:
    """The outermost modules of the composite classes that occur more than once."""
    found: Named = []
    counts = Counter(type(m) for _, m in model.named_modules() if is_composite(m))
    for fqn, module in model.named_modules():
        inside = any(fqn.startswith(f"{outer}.") for outer, _ in found)
        if fqn and not inside and is_composite(module) and counts[type(module)] > 1:
            found.append((fqn, module))
    return found
