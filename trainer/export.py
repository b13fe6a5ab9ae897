"""From a sharded, factored model, or a checkpoint of one, to a plain Hugging Face directory.

``python -m trainer.export CKPT OUT`` needs nothing but the checkpoint: no training job, no GPU, no torchrun.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from cftdiag.cli.invoke import Interrupted, invoke
from cftdiag.cli.options import debug_option
from trainer.checkpoints.layout import HF, PARTIAL, PLAN, first_whole, read_state
from trainer.checkpoints.tensors import read, read_metadata
from trainer.config import EXIT_INTERRUPTED, TRAIN_DTYPE_ALIASES, TRAIN_DTYPES, TrainConfig
from trainer.faults import writing
from trainer.methods import method_of
from trainer.methods.method import Method, Trained
from trainer.model import Source, build_meta, dtype_of
from trainer.weights import plain_name, whole

MODEL, FORMS = "model", ("model", "adapter", "quantized")
"""The plain model, and what some methods have beside it."""
SHARD = "5GB"
"""Largest file of an exported model."""


def export(
    model: nn.Module, method: Method, source: Source, directory: Path, *, dtype: torch.dtype
) -> list[Path]:
    """Write safetensors, config and tokenizer that ``AutoModelForCausalLM.from_pretrained`` reads, over what
    was there, and beside it the method's second export. Returns the directories. Collective.

    Tensors are those that the method makes of the trained ones, then cast to ``dtype``. Rank 0 writes.
    """
    values = {plain_name(name): value for name, value in model.state_dict().items()}
    plain = build_meta(dataclasses.replace(source, config=_published(source.config)), dtype=dtype)
    trained = Trained(keys=values.keys(), read=lambda keys: {key: whole(values[key]) for key in keys})
    tensors = plain_tensors(plain, trained, method)
    written = [directory]
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as assets, _anew(directory, over=True) as new:
            write_assets(source, None, Path(assets))
            _fill(new, plain, tensors, Path(assets) / HF, max_shard_size=SHARD)
    else:
        for _ in tensors:
            pass
    if (second := method.beside(trained)) is not None:
        written.append(directory.with_name(second.name))
        if dist.get_rank() == 0:
            with _anew(written[-1], over=True) as new:
                second.write(directory, new)
    dist.barrier()
    return written


def export_checkpoint(
    path: Path,
    directory: Path,
    *,
    dtype: str | None = None,
    max_shard_size: str = SHARD,
    form: str = MODEL,
) -> None:
    """The same from a checkpoint, in this process alone. ``dtype`` is by default the one that the run was to
    export; ``form`` is the plain model or the name of a method's second export.

    Raises ``ValueError`` for a path that is no whole checkpoint, a ``directory`` that is not empty, and a
    size or form that is none.
    """
    from huggingface_hub.serialization import split_torch_state_dict_into_shards
    from transformers import AutoConfig

    try:
        split_torch_state_dict_into_shards({}, max_shard_size=max_shard_size)  # before an hour of work
    except ValueError as error:
        raise ValueError(
            f"the largest file is a size such as 500MB or 5GB, not {max_shard_size!r}"
        ) from error
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} exists and is not empty; give another directory")
    first_whole([path], None)
    state = read_state(path)
    stored = {
        name: entry for name, entry in read_metadata(path).items() if isinstance(entry, TensorStorageMetadata)
    }
    keys = {name.removeprefix("model.") for name in stored if name.startswith("model.")}
    config = AutoConfig.from_pretrained(path / HF)
    wanted = dtype or state.config["save_dtype"]
    target = dtype_of(wanted) if wanted else getattr(config, "dtype", None) or torch.float32
    source = Source(config=config, tokenizer=None, path=None, attn="eager", attn_reason="", dtype=target)

    def load(names: list[str]) -> dict[str, Tensor]:
        entries = {name: stored[f"model.{name}"] for name in names}
        values = {
            f"model.{name}": torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in entries.items()
        }
        read(path, values)
        return {name: values[f"model.{name}"] for name in names}

    plain = build_meta(source, dtype=target)
    method = method_of(TrainConfig.from_mapping(state.config))
    trained = Trained(keys=keys, read=load)
    tensors = plain_tensors(plain, trained, method)
    if form == MODEL:
        with _anew(directory, over=False) as new:
            _fill(new, plain, tensors, path / HF, max_shard_size=max_shard_size)
        return
    second = method.beside(trained)
    if second is None or second.name != form:
        raise ValueError(
            f"{path} was trained with method {method.config.method_name}, which has no export as {form}; leave out --as"
        )
    with _anew(directory, over=False) as new, tempfile.TemporaryDirectory(dir=directory.parent) as dense:
        _fill(Path(dense), plain, tensors, path / HF, max_shard_size=max_shard_size)
        second.write(Path(dense), new)


def plain_tensors(plain: nn.Module, trained: Trained, method: Method) -> Iterator[tuple[str, Tensor]]:
    """Name and whole value of each tensor that the plain model's files have, one at a time, from the trained
    ones.
    """
    tied = _tied_names(plain)
    for name in plain.state_dict():
        if name not in tied:
            yield name, method.dense(name, plain, trained)


def write_assets(source: Source, plan: str | None, directory: Path) -> None:
    """What a checkpoint needs beside tensors: the model's config and generation config and the tokenizer in
    ``hf/``, and the compile plan.
    """
    from transformers import GenerationConfig

    with writing(directory / HF):
        _published(source.config).save_pretrained(directory / HF)
        if source.tokenizer is not None:
            source.tokenizer.save_pretrained(directory / HF)
    if source.path is not None:
        # Many models have none, and an unusable one must not stop training.
        with contextlib.suppress(OSError, ValueError):
            GenerationConfig.from_pretrained(source.path).save_pretrained(directory / HF)
    if plan is not None:
        with writing(directory / PLAN):
            shutil.copyfile(plan, directory / PLAN)


@contextlib.contextmanager
def _anew(directory: Path, *, over: bool) -> Iterator[Path]:
    """Where to write ``directory``: beside it, and renamed at the end, with ``over`` in place of what was
    there.
    """
    beside = directory.with_name(directory.name + PARTIAL)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with writing(beside):
            beside.mkdir(parents=True)
            yield beside
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if over:
        shutil.rmtree(directory, ignore_errors=True)
    elif directory.exists():
        directory.rmdir()
    beside.rename(directory)


def _fill(
    beside: Path,
    plain: nn.Module,
    tensors: Iterator[tuple[str, Tensor]],
    assets: Path,
    *,
    max_shard_size: str,
) -> None:
    from transformers import GenerationConfig
    from transformers.utils import logging

    scratch = beside / "scratch"
    scratch.mkdir(parents=True)
    shapes, tied = plain.state_dict(), _tied_names(plain)
    mapped = {
        name: _on_disk(value, shapes[name].dtype, scratch / f"{number:06d}")
        for number, (name, value) in enumerate(tensors)
    }
    problems = plain.load_state_dict(mapped, assign=True, strict=False)
    missing = [name for name in problems.missing_keys if name not in tied]
    assert not missing and not problems.unexpected_keys, (missing, problems.unexpected_keys)
    plain.tie_weights()
    if (assets / "generation_config.json").exists():
        plain.generation_config = GenerationConfig.from_pretrained(assets)
    logging.disable_progress_bar()
    plain.save_pretrained(beside, max_shard_size=max_shard_size)
    for file in assets.iterdir():
        if not (beside / file.name).exists():
            shutil.copyfile(file, beside / file.name)
    shutil.rmtree(scratch)


def _on_disk(value: Tensor, dtype: torch.dtype, file: Path) -> Tensor:
    """``value`` in ``dtype``, in pages that the kernel may write out: a model is exported on a machine that
    cannot hold it.
    """
    if value.numel() == 0:
        return value.to("cpu", dtype)
    with open(file, "wb") as handle:
        # Room is taken now: a full disk is an error here, and would be a dead process at the first touch of a
        # mapped page.
        os.posix_fallocate(handle.fileno(), 0, value.numel() * dtype.itemsize)
    mapped = torch.from_file(str(file), shared=True, size=value.numel(), dtype=dtype).view(value.shape)
    return mapped.copy_(value)


def _published(config: Any) -> Any:
    """The config as the model came with it; :func:`trainer.model.open_source` turns the cache off for
    training.
    """
    published = copy.deepcopy(config)
    published.use_cache = True
    return published


def _tied_names(model: nn.Module) -> set[str]:
    everything = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return everything - {name for name, _ in model.named_parameters()}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", metavar="CKPT", type=click.Path(path_type=Path))
@click.argument("directory", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice([*TRAIN_DTYPES, *TRAIN_DTYPE_ALIASES]),
    metavar="DTYPE",
    help="Default: save-dtype of the run, else the dtype the model came in.",
)
@click.option(
    "--max-shard-size",
    default=SHARD,
    show_default=True,
    metavar="SIZE",
    help="Largest file, such as 500MB.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(FORMS),
    default=MODEL,
    show_default=True,
    help="A plain model; of lora and qlora the adapter for peft; of qat the quantized model.",
)
@debug_option
def export_command(
    checkpoint: Path, directory: Path, dtype: str | None, max_shard_size: str, form: str
) -> int:
    """Write CKPT, a checkpoint of the trainer (OUT/checkpoints/step-NNNNNNNN, or best or last beside it), as a
    plain Hugging Face model into OUT, which must not exist or be empty.
    """
    short = TRAIN_DTYPE_ALIASES.get(dtype, dtype) if dtype is not None else None
    try:
        export_checkpoint(checkpoint, directory, dtype=short, max_shard_size=max_shard_size, form=form)
    except KeyboardInterrupt as error:
        raise _Stopped from error
    click.echo(directory)
    return 0


class _Stopped(Interrupted):
    exit_code = EXIT_INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted; nothing was written")


def run(arguments: Sequence[str] | None = None) -> int:
    """``python -m trainer.export CKPT OUT``; the exit code is 0, 2 for a user's mistake, or 130 after Ctrl-C."""
    program, mistakes = "python -m trainer.export", (ValueError, OSError)
    return invoke(
        export_command, arguments, prog=program, mistakes=mistakes, bugs_in_a_line=False, interrupted=_Stopped
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run with ``arguments`` (default: the process's own) and exit."""
    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
