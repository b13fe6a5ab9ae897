"""Changes of remedies that reach a script from outside its code: its data loaders and collators, the configuration
of its model, the inputs of what it compiles.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from cftdiag.rehearse.import_hooks import after_import
from cftdiag.rehearse.settings import Rehearsal
from cftdiag.torch_private.tracing import tree_leaves

#: Modules whose collators have a field ``pad_to_multiple_of``.
_COLLATORS = (
    "transformers.data.data_collator",
    "trl.trainer.sft_trainer",
    "trl.trainer.dpo_trainer",
    "trl.trainer.reward_trainer",
    "trl.trainer.utils",
)


class Applied:
    """Names of the changes that met something to change."""

    def __init__(self) -> None:
        self.names: set[str] = set()


def install(settings: Rehearsal) -> Applied:
    """Make the changes that the rehearsal is to try."""
    applied = Applied()
    if settings.drop_last:
        _drop_last(applied)
    if settings.pad_to_multiple_of:
        _pad(applied, settings.pad_to_multiple_of)
    return applied


def configured(config: Any, settings: Rehearsal, applied: Applied) -> None:
    """Set what the rehearsal changes in a model's configuration."""
    for name, value in settings.model_config.items():
        if hasattr(config, name):
            setattr(config, name, value)
            applied.names.add("model_config")


def with_gradients(compiled: Callable[..., Any], applied: Applied) -> Callable[..., Any]:
    """A compiled call whose floating-point inputs require gradients while any are taken."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.requires_grad:
                    value.requires_grad_(True)
                    applied.names.add("input_requires_grad")
        return compiled(*args, **kwargs)

    return call


def _drop_last(applied: Applied) -> None:
    real = torch.utils.data.DataLoader.__init__
    signature = inspect.signature(real)

    @functools.wraps(real)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        if given.get("batch_sampler") is None and given.get("batch_size", 1) is not None:
            given["drop_last"] = True
            applied.names.add("drop_last")
        real(**given)

    torch.utils.data.DataLoader.__init__ = initialise  # type: ignore[method-assign]


def _pad(applied: Applied, multiple: int) -> None:
    def collators(module: ModuleType) -> None:
        for cls in vars(module).values():
            if isinstance(cls, type) and "pad_to_multiple_of" in getattr(cls, "__dataclass_fields__", {}):
                _field(cls)

    def _field(cls: Any) -> None:
        real = cls.__init__

        @functools.wraps(real)
        def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
            real(self, *args, **kwargs)
            self.pad_to_multiple_of = multiple
            applied.names.add("pad_to_multiple_of")

        if cls.__module__ in _COLLATORS:
            cls.__init__ = initialise

    for name in _COLLATORS:
        after_import(name, collators)
    after_import("transformers.tokenization_utils_base", functools.partial(_tokenizer, applied, multiple))
    _sequences(applied, multiple)


def _tokenizer(applied: Applied, multiple: int, module: ModuleType) -> None:
    cls = module.PreTrainedTokenizerBase

    def padded(name: str, default: Any) -> None:
        real = getattr(cls, name)

        @functools.wraps(real)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("padding", default) not in (False, None, "do_not_pad", "max_length"):
                kwargs["pad_to_multiple_of"] = multiple
                applied.names.add("pad_to_multiple_of")
            return real(self, *args, **kwargs)

        setattr(cls, name, call)

    padded("__call__", False)
    padded("pad", True)


def _sequences(applied: Applied, multiple: int) -> None:
    """What a collator written by hand pads with."""
    from torch.nn.utils import rnn

    real = rnn.pad_sequence

    @functools.wraps(real)
    def pad_sequence(
        sequences: Any, batch_first: bool = False, padding_value: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        rows = real(sequences, batch_first, padding_value, *args, **kwargs)
        if torch.compiler.is_compiling():
            return rows
        dimension = 1 if batch_first else 0
        more = -rows.shape[dimension] % multiple
        applied.names.add("pad_to_multiple_of")
        if not more:
            return rows
        shape = [more if i == dimension else n for i, n in enumerate(rows.shape)]
        return torch.cat([rows, rows.new_full(shape, padding_value)], dimension)

    rnn.pad_sequence = pad_sequence
