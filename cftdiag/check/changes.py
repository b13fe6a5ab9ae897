"""Mechanical changes of remedies: how the check makes them, and how a reader writes them down. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cftdiag.errors import InputError
from cftdiag.options import DYNAMIC, CheckOptions

_ENVIRONMENT = {"TORCH_COMPILE_DYNAMIC_SOURCES": "torch.compiler.config.dynamic_sources"}
"""Environment variables that torch reads once, at import, and the setting that they end in: a pass has
imported torch already.
"""
#: Settings of torch that are sets of functions, to which a remedy adds one by its dotted name.
_SETS = frozenset(
    f"torch._dynamo.config.{name}" for name in ("ignore_logging_functions", "reorderable_logging_functions")
)
_OF_CONFIG_MODELS = ("attn", "flash_varlen", "dtype")
_OF_SUBJECTS = ("drop_last", "eager_warmup", "input_requires_grad")
_IN_WORDS = {
    "drop_last": "DataLoader(..., drop_last=True)",
    "eager_warmup": "model(**batch)  # once, before anything is compiled",
    "input_requires_grad": "x.requires_grad_(True)  # every floating input of the block",
}


def apply_change(
    options: CheckOptions, change: Mapping[str, Any], *, config_subject: bool
) -> CheckOptions | None:
    """The options with a remedy's change; None for a change that has no meaning for this subject or that
    nothing here can make.
    """
    fields: dict[str, Any] = {}
    patch = options.patch
    settings, environment, kwargs = dict(patch.torch_config), dict(patch.env), dict(patch.compile_kwargs)
    for key, value in change.items():
        if key.startswith("torch."):
            settings[key] = value
        elif key == "env":
            for name, text in value.items():
                if name in _ENVIRONMENT:
                    settings[_ENVIRONMENT[name]] = text
                else:
                    environment[name] = str(text)
        elif key == "compile_kwargs":
            kwargs |= {k: v for k, v in value.items() if k not in ("dynamic", "fullgraph")}
            fields |= {k: v for k, v in value.items() if k == "fullgraph"}
            if "dynamic" in value:
                fields["dynamic"] = _dynamic(value["dynamic"])
        elif key == "dynamic":
            fields["dynamic"] = _dynamic(value)
        elif key in ("mark_dynamic", "mark_unbacked"):
            marks = {name: [int(d) for d in dims] for name, dims in value.items()}
            known = patch.mark_dynamic if key == "mark_dynamic" else patch.mark_unbacked
            fields[key] = {**known, **marks}
        elif key == "model_config":
            fields[key] = {**patch.model_config, **value}
        elif key == "pad_to_multiple_of":
            fields[key] = int(value)
        elif key in _OF_CONFIG_MODELS or key in _OF_SUBJECTS:
            if config_subject is (key in _OF_SUBJECTS):
                return None
            fields[key] = value
        elif key in ("ac", "compile_scope", "compile_backend"):
            fields[key] = value
        else:
            return None
    try:
        return options.with_(torch_config=settings, env=environment, compile_kwargs=kwargs, **fields)
    except InputError:
        return None


def _dynamic(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else next(name for name, meaning in DYNAMIC.items() if meaning is value)
    )


def edit_of(change: Mapping[str, Any]) -> str:
    """The change as a line or two to write: Python of the training program, or options of the check."""
    lines: list[str] = []
    kwargs: dict[str, Any] = {}
    for key, value in change.items():
        if key in _SETS:
            lines.append(f"{key}.add({value})")
        elif key.startswith("torch."):
            lines.append(f"{key} = {value!r}")
        elif key == "env":
            lines += [f"export {name}={text!r}" for name, text in value.items()]
        elif key == "compile_kwargs":
            kwargs |= value
        elif key == "dynamic":
            kwargs["dynamic"] = DYNAMIC.get(value, value) if isinstance(value, str) else value
        elif key in ("mark_dynamic", "mark_unbacked"):
            home = "torch._dynamo" if key == "mark_dynamic" else "torch._dynamo.decorators"
            lines += [f"{home}.{key}({name}, {dim})" for name, dims in value.items() for dim in dims]
        elif key == "model_config":
            lines += [f"model.config.{name} = {item!r}" for name, item in value.items()]
        elif key in _IN_WORDS:
            lines.append(_IN_WORDS[key])
        else:
            flag = "--" + key.replace("_", "-")
            lines.append(flag if value is True else f"{flag} {value}")
    if kwargs:
        given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        lines.insert(0, f"block.compile({given})")
    return "\n".join(lines)
