"""``cftdiag kernels``: the code that Inductor generates for a block, kernel by kernel, for a device that need
not be there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from cftdiag.cli import early
from cftdiag.cli.options import (
    MODEL_HELP,
    Lengths,
    attention_option,
    batch_size_option,
    check_writable,
    debug_option,
    dtype_option,
    dynamic_option,
    padding_option,
    settings_option,
    write_json,
    write_text,
)
from cftdiag.errors import EnvironmentUnfit
from cftdiag.target.devices import TARGETS


@click.command(short_help="Generated code, per kernel: source lines, fused ops, registers, spills, bytes.")
@click.option(
    "--model",
    required=True,
    metavar="MODEL",
    help=MODEL_HELP,
)
@click.option(
    "--target",
    type=click.Choice([*TARGETS, "cuda"]),
    help="Device to generate for; cuda, the one here, is the default.",
)
@click.option(
    "--length",
    "--lengths",
    "lengths",
    type=Lengths(),
    help="Sequence lengths; with several, what changes between them.  [default: 512]",
)
@batch_size_option
@click.option(
    "--block", metavar="KIND", help="Only this kind of block: a kind, a class or a name, globs allowed."
)
@attention_option
@dtype_option
@dynamic_option("true")
@padding_option
@settings_option("A torch setting, such as torch._inductor.config.NAME=VALUE.")
@click.option(
    "--compile/--no-compile",
    "compile_kernels",
    default=True,
    help="Compile each configuration and read its registers (the default).",
)
@click.option("--source", is_flag=True, help="Print each kernel's text.")
@click.option(
    "--bytecode",
    is_flag=True,
    help="Print the Python that Dynamo runs instead of each block, decompiled where depyf can.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the report, the output code and each kernel into DIR.",
)
@click.option(
    "--json",
    "json_path",
    is_flag=False,
    flag_value="-",
    metavar="[FILE|-]",
    help="Write the report as JSON to FILE, or to stdout alone with - or nothing.",
)
@click.option(
    "--html",
    "html_path",
    metavar="FILE|-",
    help="Write one self-contained HTML page, each kernel's text highlighted.",
)
@debug_option
def kernels(
    model: str,
    target: str | None,
    block: str | None,
    torch_config: tuple[tuple[str, Any], ...],
    compile_kernels: bool,
    source: bool,
    bytecode: bool,
    out: Path | None,
    json_path: str | None,
    html_path: str | None,
    **options: Any,
) -> int:
    """Show what Inductor generates for each kind of block: kernels, fused operators, registers, bytes, and
    library calls beside them.

    Needs no GPU: the code is generated for the device of --target, and Triton compiles it for that device
    without running it.
    """
    from cftdiag.kernels import job, page, render

    check_writable(json_path, html_path)
    early.refuse_sizes(options["batch_size"], options["lengths"])
    early.refuse_settings(dict(torch_config))
    early.refuse_source(model)
    where = target or _present()
    if out is not None:
        _make(out)
    with _status() as progress:
        data = job.kernels(
            model,
            target=where,
            block=block,
            compile_kernels=compile_kernels,
            with_source=source or out is not None or json_path is not None or html_path is not None,
            with_bytecode=bytecode,
            torch_config=dict(torch_config),
            progress=progress,
            **{name: value for name, value in options.items() if value is not None},
        )
    if out is not None:
        _write(out, data)
    if "-" not in (json_path, html_path):
        render.show(data, sources=source, code=bytecode)
    if json_path is not None:
        write_json(json_path, data)
    if html_path is not None:
        write_text(html_path, page.render(data))
    return 0


def _present() -> str:
    import torch

    if not torch.cuda.is_available():
        raise click.UsageError(
            f"no CUDA device here to generate for; name one with --target ({', '.join(TARGETS)})"
        )
    return "cuda"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"cannot make {folder}: {error.strerror}; name another directory") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.UsageError(f"cannot write into {folder}: permission denied; name another directory")


@contextlib.contextmanager
def _status() -> Any:
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.text import Text

    from cftdiag.report.console import console_for

    with console_for(sys.stderr).status("starting", spinner="dots") as status:
        yield lambda text: status.update(Text(text))


def _write(out: Path, data: dict[str, Any]) -> None:
    try:
        (out / "kernels.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        for block in data["blocks"]:
            for graph in block["graphs"]:
                folder = out / "".join(
                    c if c.isalnum() else "_"
                    for c in f"{block['kind']} {graph['compile_id']} {graph['direction']}"
                )
                folder.mkdir(exist_ok=True)
                (folder / "output_code.py").write_text(graph["code"], encoding="utf-8")
                for kernel in graph["kernels"]:
                    (
                        folder / f"{kernel['name']}.{'cpp' if kernel['category'] == 'cpp' else 'py'}"
                    ).write_text(kernel["source"], encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(
            f"cannot write into {out}: {error.strerror}; free disk space or name another directory"
        ) from error
