"""One model class as a training program: its small configuration and the form of its inputs are searched
once, then built the same in every process. Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch.utils._pytree import tree_leaves

from tests.zoo.entries import Entry
from tests.zoo.inputs import SCHEDULES, Form, Inputs, forms, placeholders
from tests.zoo.shrink import WAYS, Shrunk

#: More parameters than this make a run of an entry too expensive, and say that the shrinking missed a field.
MOST_PARAMETERS = 40_000_000


#: Processor seconds after which the search for what trains ends.
LONGEST_SEARCH_S = 10.0


class NotTrainable(Exception):
    """No way of shrinking and no form of inputs trains this class; the message is the last error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How an entry is built. JSON-ready by :func:`dataclasses.asdict`."""

    overrides: Mapping[str, Any]
    way: str
    form: Mapping[str, Any]
    parameters: int
    caches: bool
    """True when the configuration has a ``use_cache`` that can be on."""


def find(entry: Entry) -> Plan:
    """Search what trains. Raises :class:`NotTrainable`."""
    last = "its class cannot be imported"
    for way in WAYS:
        try:
            with _quiet():
                overrides = Shrunk(way).overrides(_config_class(entry)())
                count = _parameters(entry, overrides)
                if count > MOST_PARAMETERS:
                    last = f"not built: {count / 1e6:.0f} M parameters"
                    continue
                model = _model(entry, overrides)
        except Exception as error:  # noqa: BLE001 - configuration and model classes raise anything
            last = f"not built: {type(error).__name__}: {error}"
            continue
        form, why = _form(entry, model)
        if form is not None:
            caches = any(isinstance(getattr(c, "use_cache", None), bool) for c in _configs(model.config))
            return Plan(overrides=overrides, way=way, form=form.to_dict(), parameters=count, caches=caches)
        last = why
    raise NotTrainable(" ".join(last.split())[:300])


def build(entry: Entry, plan: Plan, use_cache: bool) -> tuple[Any, list[dict[str, Any]]]:
    """(model in training mode, one batch a step), the same in every process."""
    with _quiet():
        model = _model(entry, plan.overrides)
        _set_cache(model.config, use_cache)
        batches = Inputs(model, entry.task, Form(**plan.form), entry.number).schedule(entry.number)
    seed_everything()
    return model, batches


def step(model: Any, batch: Mapping[str, Any]) -> Any:
    """One training step: the model's own loss, or the mean square of its first floating output; backward."""
    output = model(**batch)
    output = dict(output) if isinstance(output, Mapping) else output
    found = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    own = output.get("loss") if isinstance(output, dict) else None
    loss = own if own is not None else next(x for x in found if x.requires_grad).float().pow(2).mean()
    loss.mean().backward()
    model.zero_grad(set_to_none=True)
    return loss.detach().mean()


def seed_everything() -> None:
    """One seed for torch, Python and numpy, from which some models draw what they mask."""
    import numpy

    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def _config_class(entry: Entry) -> Any:
    """The class's own, which can be a part of what its model type names."""
    own = getattr(getattr(transformers, entry.cls), "config_class", None)
    return own or transformers.models.auto.configuration_auto.CONFIG_MAPPING[entry.model_type]


def _model(entry: Entry, overrides: Mapping[str, Any]) -> Any:
    torch.manual_seed(0)
    config = _config_class(entry)(**overrides)
    if entry.task == "CAUSAL_LM" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True  # what is an encoder by default
    return getattr(transformers, entry.cls)(config).float().train()


def _parameters(entry: Entry, overrides: Mapping[str, Any]) -> int:
    """How many the model would have; 0 for one that cannot be made without memory."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in _model(entry, overrides).parameters())
    except Exception:  # noqa: BLE001 - some models compute on their weights while they are made
        return 0


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            yield from _configs(value)


def _set_cache(config: Any, on: bool) -> None:
    for each in _configs(config):
        if isinstance(getattr(each, "use_cache", None), bool):
            each.use_cache = on


def _form(entry: Entry, model: Any) -> tuple[Form | None, str]:
    """The first form with which every batch of the schedule trains, or why the last one tried does not."""
    import inspect

    _set_cache(model.config, False)
    why = ""
    for form in forms(entry.task, inspect.signature(model.forward).parameters):
        if time.process_time() > LONGEST_SEARCH_S:  # a job has a process of its own
            raise NotTrainable(f"not found within {LONGEST_SEARCH_S:.0f} s: {why}")
        tried = form
        for _ in range(3):
            try:
                _trains(entry, model, tried)
                return tried, ""
            except Exception as error:  # noqa: BLE001 - a model raises anything for inputs of another form
                said = f"{type(error).__name__}: {error}"
                why = why or said
                if "more than 1 value per channel" in said and tried.least_rows == 1:
                    tried = dataclasses.replace(tried, least_rows=2)  # batch norm cannot train on one row
                    continue
                wanted = placeholders(str(error), _first_rows(entry, tried))
                if wanted is None or wanted == tried.placeholders:
                    break
                tried = dataclasses.replace(tried, placeholders=wanted)
    return None, f"does not train: {why}"


def _first_rows(entry: Entry, form: Form) -> int:
    return max(form.least_rows, SCHEDULES[entry.number % len(SCHEDULES)][0][0])


def _trains(entry: Entry, model: Any, form: Form) -> None:
    with _quiet():
        for batch in Inputs(model, entry.task, form, entry.number).schedule(entry.number):
            seed_everything()
            step(model, batch)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
