"""Draw a program: an architecture, one or two faults, their style, place, depth and moment; write its files."""

from __future__ import annotations

import ast
import dataclasses
import pprint
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.architectures import ARCHITECTURES, Architecture
from tests.faults.fault import Fault, Injector
from tests.faults.source import (
    FILES,
    NAMES,
    PACKAGES,
    Files,
    copied,
    copy_class,
    inject,
    method_of,
    parsed,
    settle,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """One fault in a program. ``blocks`` are those that hold it; ``lines`` and ``here`` are {file: lines}."""

    injector: str
    fault: Fault
    style: str
    blocks: tuple[str, ...]
    lines: dict[str, list[int]]
    here: dict[str, list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """What :func:`write` was given: the same again writes the same program."""

    architecture: Architecture
    choices: tuple[Choice, ...]
    layers: int
    state: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A written program: ``path`` is its file with ``build()``."""

    path: Path
    architecture: str
    placed: tuple[Placed, ...]
    all_blocks: tuple[str, ...]
    drawn: Drawn

    def describe(self) -> str:
        """One line for a reader: model, and each fault with its style and blocks."""
        faults = "; ".join(f"{p.injector} ({p.style}, {', '.join(p.blocks)})" for p in self.placed)
        return f"{self.architecture}: {faults or 'no fault'}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What was drawn for one fault. ``holder`` is the class, ``attribute`` its name in the block ('' for the block
    itself), ``chosen`` the blocks that hold the fault, None for all.
    """

    injector: str
    fault: Fault
    style: str
    attribute: str
    holder: str
    chosen: tuple[int, ...] | None


def submodules(text: str, block: str) -> list[tuple[str, str]]:
    """(attribute, class) of what a block's ``__init__`` always makes of classes of the same file with a forward."""
    made = (
        item
        for node in parsed(text).body
        if isinstance(node, ast.ClassDef) and node.name == block
        for item in node.body
    )
    pairs = []
    for function in made:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            for statement in function.body:
                match statement:
                    case ast.Assign(
                        targets=[ast.Attribute(attr=name)], value=ast.Call(func=ast.Name(id=kind))
                    ) if method_of(text, kind):
                        pairs.append((name, kind))
    return pairs


def draw(
    injectors: dict[str, Injector],
    name: str,
    random: Random,
    folder: Path,
    *,
    second: bool,
    architecture: str = "",
) -> Program:
    """Draw and write a program with the fault of injector ``name``, and with ``second`` another beside it."""
    first = injectors[name](random)
    fits = [a for a in ARCHITECTURES if _fits(first, a) and architecture in ("", a.type)]
    arch = random.choice(fits)
    text = copied(arch.type)
    layers = random.choice((2, 3))
    if first.depth == "one" or random.random() < 0.5:
        layers = max(layers, 2)
    count = layers * len(arch.blocks)
    faults = [(name, first)]
    if second and not first.alone and first.body:
        others = [n for n in injectors if n != name]
        random.shuffle(others)
        for other in others:
            more = injectors[other](random)
            if more.alone or not more.body or not _fits(more, arch) or not _together(first, more):
                continue
            if more.styles and set(more.causes) != set(first.causes):
                faults.append((other, more))
                break
    choices = [_choose(n, f, arch, text, count, random) for n, f in faults]
    return write(arch, choices, folder, layers, random.getrandbits(32))


def _fits(fault: Fault, arch: Architecture) -> bool:
    lengths = {length for _, length in fault.shapes}
    return (arch.varies or len(lengths) == 1) and (not fault.models or arch.type in fault.models)


def _together(one: Fault, other: Fault) -> bool:
    """Two faults share a program where neither changes what the other stands on."""
    default = Fault.__dataclass_fields__["shapes"].default
    shapes = {tuple(f.shapes) for f in (one, other)} - {tuple(default)}
    compiles = [f.compile for f in (one, other) if f.compile is not None]
    same_compile = len(compiles) < 2 or compiles[0] == compiles[1]
    return len(shapes) <= 1 and same_compile and not (one.step and other.step)


def _choose(name: str, fault: Fault, arch: Architecture, text: str, count: int, random: Random) -> Choice:
    style = random.choice(fault.styles) if fault.body else "block"
    inner = submodules(text, arch.block)
    attribute, holder = "", arch.block
    if inner and (
        style == "submodule" or (style in ("helper", "library", "mixin") and random.random() < 0.4)
    ):
        attribute, holder = random.choice(inner)
    elif style == "submodule":
        style = "block"
    one = fault.depth == "one" or (fault.depth == "any" and random.random() < 0.4)
    chosen = (random.randrange(count),) if one and fault.body else None
    return Choice(injector=name, fault=fault, style=style, attribute=attribute, holder=holder, chosen=chosen)


def write(arch: Architecture, choices: Sequence[Choice], folder: Path, layers: int, state: int) -> Program:
    """Write the files of a program into ``folder``; ``state`` seeds the names and the line."""
    random = Random(state)
    files = Files(modeling=copied(arch.type))
    names = random.sample(NAMES, k=len(NAMES))
    packages = random.sample(PACKAGES, k=len(PACKAGES))
    homes, swaps = [], []
    for number, choice in enumerate(choices):
        mark = f"@{number}"
        if not choice.fault.body:
            homes.append("")
            continue
        holder = choice.holder
        if choice.chosen is not None:  # classes of their own for the chosen blocks
            block = f"{arch.block}{number or ''}Special"
            files.modeling = copy_class(files.modeling, arch.block, block)
            swap = [("", block)]
            if choice.attribute:
                holder = f"{choice.holder}{number or ''}Special"
                files.modeling = copy_class(files.modeling, choice.holder, holder)
                swap.append((choice.attribute, holder))
            else:
                holder = block
            swaps.append((choice.chosen, swap))
        homes.append(
            inject(
                files,
                choice.fault,
                style=choice.style,
                holder=holder,
                home=f"{packages.pop()}.{random.choice(FILES)}",
                names=names,
                mark=mark,
                random=random,
            )
        )
    marks = [f"@{n}" for n in range(len(choices))]
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, dict[str, list[int]]] = {m: {} for m in marks}
    here: dict[str, dict[str, list[int]]] = {m: {} for m in marks}
    program = _program(arch, choices, layers, homes, swaps)
    texts = {f"modeling_{arch.type}.py": files.modeling, "program.py": program, **files.others}
    for name, content in texts.items():
        clean, all_of, at_fault = settle(content, marks)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(clean)
        for m in marks:
            if all_of[m]:
                lines[m][str(path)] = all_of[m]
            if at_fault[m]:
                here[m][str(path)] = at_fault[m]
    blocks = tuple(f"{path}.{i}" for path in arch.blocks for i in range(layers))
    placed = tuple(
        Placed(
            injector=c.injector,
            fault=c.fault,
            style=c.style if c.fault.body else "program",
            blocks=blocks if c.chosen is None else tuple(blocks[i] for i in c.chosen),
            lines=lines[m],
            here=here[m],
        )
        for c, m in zip(choices, marks, strict=True)
    )
    return Program(
        path=folder / "program.py",
        architecture=arch.type,
        placed=placed,
        all_blocks=blocks,
        drawn=Drawn(architecture=arch, choices=tuple(choices), layers=layers, state=state),
    )


def _function(name: str, arguments: str, body: str) -> str:
    return f"def {name}({arguments}):\n{textwrap.indent(body or 'pass', '    ')}\n\n\n"


def _program(
    arch: Architecture, choices: Sequence[Choice], layers: int, homes: list[str], swaps: list[Any]
) -> str:
    config = {**arch.config, arch.layers: layers}
    shapes: Any = next(
        (
            f.shapes
            for f in (c.fault for c in choices)
            if f.shapes != Fault.__dataclass_fields__["shapes"].default
        ),
        None,
    )
    shapes = list(shapes or Fault.__dataclass_fields__["shapes"].default)
    compiles = [c.fault.compile for c in choices if c.fault.compile is not None]
    step = next((c.fault.step for c in choices if c.fault.step), "")
    parts = [
        f'"""Trains a tiny {arch.type}."""\n\nimport torch\nimport transformers\n\nimport modeling_{arch.type} as modeling\n'
    ]
    parts += [f"import {home}\n" for home in dict.fromkeys(homes) if home]
    parts.append(f"\nCOMPILE = {compiles[0] if compiles else {}!r}\nSHAPES = {shapes!r}\n")
    parts.append(f"STACKS = {arch.blocks!r}\nCONFIG = {pprint.pformat(config)}\n\n\n")
    parts.append(
        "def blocks_of(model):\n"
        '    return [(f"{stack}.{i}", block) for stack in STACKS for i, block in enumerate(model.get_submodule(stack))]\n\n\n'
    )
    holders = []
    for choice in choices:
        numbers = "" if choice.chosen is None else f" if i in {choice.chosen!r}"
        expression = f"block.{choice.attribute}" if choice.attribute else "block"
        holders.append(f"[{expression} for i, (_, block) in enumerate(blocks_of(model)){numbers}]")
    arguments = "model, blocks, holders, home"
    before, watched = [], []
    for number, choice in enumerate(choices):
        fault = choice.fault
        home = homes[number] or "modeling"
        if fault.init:
            parts.append(_function(f"prepare_{number}", "self, index, home", fault.init))
        if fault.setup:
            parts.append(_function(f"setup_{number}", arguments, fault.setup))
        if fault.before_step:
            parts.append(_function(f"before_{number}", arguments + ", i", fault.before_step))
            before.append(
                f"before_{number}(model, [b for _, b in blocks_of(model)], {holders[number]}, {home}, i)"
            )
        if fault.watch:
            parts.append(_function(f"watch_{number}", arguments, fault.watch))
            watched.append(
                f"{number}: watch_{number}(model, [b for _, b in blocks_of(model)], {holders[number]}, {home})"
            )
    build = ["torch.manual_seed(0)", f"config = transformers.AutoConfig.for_model({arch.type!r}, **CONFIG)"]
    build += ["config.use_cache = False", f"model = modeling.{arch.model}(config).train()"]
    for chosen, swap in swaps:
        build.append(f"for i, (_, block) in enumerate(blocks_of(model)):\n    if i in {chosen!r}:")
        for attribute, name in swap:
            build.append(f"        block{'.' + attribute if attribute else ''}.__class__ = modeling.{name}")
    for number, choice in enumerate(choices):
        home = homes[number] or "modeling"
        if choice.fault.init:
            build.append(
                f"for index, module in enumerate({holders[number]}):\n    prepare_{number}(module, index, {home})"
            )
        if choice.fault.setup:
            build.append(
                f"setup_{number}(model, [b for _, b in blocks_of(model)], {holders[number]}, {home})"
            )
    parts.append(_function("build_model", "", "\n".join([*build, "return model"])))
    parts.append(_function("make_batches", "", _batches(arch)))
    parts.append(
        _function(
            "default_step",
            "model, batch",
            "output = model(**batch)\nvalues = (output.logits if hasattr(output, 'logits') else output[0]).float()\n"
            "loss = values.pow(2).mean()\nloss.backward()\nreturn loss.detach()",
        )
    )
    parts.append(_function("train_step", "model, batch", step or "return default_step(model, batch)"))
    parts.append(
        _function(
            "step",
            "model, batch",
            "loss = train_step(model, batch)\nmodel.zero_grad(set_to_none=True)\nreturn loss",
        )
    )
    parts.append(_function("before_step", "model, i", "\n".join(before)))
    if watched:
        parts.append(_function("watched", "model", f"return {{{', '.join(watched)}}}"))
    parts.append(
        _function(
            "build",
            "",
            "from cftdiag import Subject\n\nreturn Subject(\n    model=build_model(),\n    batches=make_batches(),\n"
            "    blocks=[f'{stack}.*' for stack in STACKS],\n"
            "    step=step,\n    before_step=before_step,\n    compile_kwargs=COMPILE,\n)",
        )
    )
    return re.sub(r"\n+$", "\n", "".join(parts))


def _batches(arch: Architecture) -> str:
    """The body of ``make_batches``: one batch for each of SHAPES, with real values."""
    size = {
        "text": "{'input_ids': torch.randint(1, CONFIG['vocab_size'], (rows, length))}",
        "pair": "{'input_ids': torch.randint(1, CONFIG['vocab_size'], (rows, length)), "
        "'decoder_input_ids': torch.randint(1, CONFIG['vocab_size'], (rows, length))}",
        "image": "{'pixel_values': torch.randn(rows, 3, CONFIG['image_size'], CONFIG['image_size'])}",
        "sound": "{'input_values': torch.randn(rows, 400)}",
    }[arch.inputs]
    return f"torch.manual_seed(1)\nreturn [{size} for rows, length in SHAPES]"
