"""A plan (``cftdiag.plan/1``) as the monitor needs it: does it foresee this compile?"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

from cftdiag.events import Event
from cftdiag.plan import Plan, load_plan

#: Fields of the fingerprint that can be seen from inside an unmodified script.
SEEN = ("torch", "transformers")


class Planned:
    """The regimes of a plan and which of them this rank has compiled, by code."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self._plan = plan
        self._taken: dict[Any, dict[str, str | None]] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Planned:
        """Read a plan; ``ValueError`` with one line when it is none, or was made for another torch or
        transformers.
        """
        expect = {}
        for name in SEEN:
            try:
                expect[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue  # the plan is then held against the rest
        return cls(str(path), load_plan(str(path), expect))

    def differs(self, model: Any, world_size: int) -> str | None:
        """Why the plan was made for another run, as far as its ranks and its model (where there is one) tell;
        None when nothing differs.
        """
        expect: dict[str, Any] = {"world_size": world_size}
        attn = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if attn is not None:
            expect["attn"] = attn
        known = {
            name: value for name, value in expect.items() if self._plan.fingerprint.get(name) is not None
        }
        try:
            self._plan.check(known, self.name)
        except ValueError as error:
            return str(error)
        return None

    def foresees(self, event: Event, batch: tuple[int, int] | None) -> bool | None:
        """True when the event's (code, batch shape) falls in a regime that this rank has not compiled yet;
        None without a shape. A regime that the plan names several times is compiled as often.

        A recompile and the compile that follows it are one: both ask with the same compile id and get the
        same answer.
        """
        if batch is None:
            return None
        first = next((r for r in self._plan.regimes if r.covers(*batch)), None)
        if first is None:
            return False
        taken = self._taken.setdefault(event.code, {})
        alike = [r.id for r in self._plan.regimes if (r.bounds, r.variants) == (first.bounds, first.variants)]
        free = [name for name in alike if name not in taken]
        known = [name for name in alike if name in taken and taken[name] == event.compile_id]
        if not known and free:
            taken[free[0]] = event.compile_id
        return bool(known or free)
