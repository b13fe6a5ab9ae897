"""What is checked: a Subject, and the origin from which a child process builds it.

Torch-free.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.errors import InputError
from cftdiag.recipe.train_recipe import TrainRecipe


@dataclasses.dataclass(kw_only=True)
class Subject:
    """A model, its batches and how it is trained.

    ``batches`` are the keyword arguments of ``model(**batch)``, one a step. ``step(model, batch)`` is one
    training step (default: forward, mean square of the first floating output, backward). ``before_step(model,
    i)`` runs before step ``i`` (0-based). ``wrap(model)`` compiles the model itself and may return another
    one; then there is no fullgraph pass and ``batches`` may be empty. ``check(model, losses)``'s result is
    copied into the report. ``compile_kwargs`` are those of ``Module.compile``; ``{}`` is torch's defaults
    with backend ``aot_eager``. ``training`` says how a program of ours trains the model (a trainer's checks of its
    own configuration): the loss is then the recipe's, and ``step`` is left out.
    """

    model: Any
    batches: Sequence[Mapping[str, Any]] = ()
    blocks: Sequence[str] | None = None
    step: Callable[[Any, Any], Any] | None = None
    before_step: Callable[[Any, int], None] | None = None
    wrap: Callable[[Any], Any] | None = None
    check: Callable[[Any, list[Any]], Any] | None = None
    compile_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: TrainRecipe | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """How a child process builds what is checked. ``type`` is ``config`` (with ``model_type`` and
    ``config``), ``file`` (with ``path`` and ``attr``), ``hub`` or ``live`` (an object of the caller's).
    """

    type: str
    name: str
    model_type: str | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    path: str | None = None
    attr: str = "build"

    @property
    def from_config(self) -> bool:
        """True for a model that the check builds itself, without weights."""
        return self.type in ("config", "hub")


def as_subject(built: object, what: str) -> Subject:
    """Turn what ``build()`` returned into a validated Subject.

    ``what`` names the builder in messages. Raises :class:`InputError`.
    """
    if isinstance(built, Subject):
        subject = built
    elif isinstance(built, (tuple, list)) and len(built) == 2:
        subject = Subject(model=built[0], batches=built[1])
    else:
        raise InputError(
            f"{what} returned {_describe(built)}; return (model, batches) or cftdiag.Subject(...)"
        )
    if not callable(getattr(subject.model, "named_modules", None)):
        raise InputError(
            f"{what} gave a model that is {_describe(subject.model)}; it must be a torch.nn.Module"
        )
    batches = subject.batches
    if isinstance(batches, Mapping) or not isinstance(batches, Sequence) or isinstance(batches, str):
        raise InputError(
            f"{what} gave batches that are {_describe(batches)}; give a list of dicts, one dict of keyword arguments a step"
        )
    for i, batch in enumerate(batches):
        if not isinstance(batch, Mapping) or not all(isinstance(k, str) for k in batch):
            raise InputError(
                f"{what}: batch {i} is {_describe(batch)}; each batch is a dict of keyword arguments of model(**batch)"
            )
    if not batches and subject.wrap is None:
        raise InputError(f"{what} gave no batches; give at least one, so that there is something to run")
    if not isinstance(subject.compile_kwargs, Mapping):
        raise InputError(
            f"{what}: compile_kwargs is {_describe(subject.compile_kwargs)}; give a dict of torch.compile options"
        )
    return subject


def _describe(value: object) -> str:
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"a {type(value).__name__}{size}" if value is not None else "None"


def resolve(model: str) -> Origin:
    """Where the model of ``--model`` comes from.

    Raises :class:`InputError` with the nearest catalogue names for a name that can be
    nothing else.
    """
    from cftdiag import catalogue

    if not model or not model.strip():
        raise InputError(
            "no model given; give --model with one of `cftdiag models`, a directory, a config.json, a hub id or file.py:build"
        )
    path, _, attribute = model.rpartition(":")
    if path.endswith(".py"):
        if not attribute.isidentifier():
            raise InputError(f"{model!r}: {attribute!r} is no function name; write file.py:build")
        return _file_origin(Path(path), attribute)
    if model.endswith(".py"):
        return _file_origin(Path(model), "build")
    entry = catalogue.find(model)
    if entry is not None and not Path(model).exists():
        return Origin(type="config", name=entry.name, model_type=entry.model_type, config=dict(entry.config))
    local = Path(model)
    if local.is_dir():
        local = local / "config.json"
        if not local.is_file():
            raise InputError(
                f"{model}: the directory holds no config.json; give a model directory or a config.json"
            )
    if local.is_file():
        return _config_origin(local)
    if model.endswith(".json") or model.startswith((".", "/", "~")):
        raise InputError(f"{model}: no such file or directory")
    if model.count("/") == 1 and all(model.split("/")):
        return Origin(type="hub", name=model)
    close = catalogue.close_matches(model)
    hint = f"did you mean {', '.join(close)}?" if close else "`cftdiag models` lists the catalogue"
    raise InputError(f"{model!r} is no catalogue name, file, directory or hub id (owner/name); {hint}")


def _file_origin(path: Path, attribute: str) -> Origin:
    if not path.is_file():
        raise InputError(f"{path}: no such file; write file.py:build")
    return Origin(type="file", name=f"{path.name}:{attribute}", path=str(path.resolve()), attr=attribute)


def _config_origin(path: Path) -> Origin:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); check the file and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); give a transformers config.json") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: holds {_describe(config)}, not an object; give a transformers config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(
            f"{path}: has no model_type; a transformers config.json names its architecture there"
        )
    name = path.parent.name if path.name == "config.json" else path.stem
    return Origin(type="config", name=name, model_type=model_type, config=config, path=str(path.resolve()))
