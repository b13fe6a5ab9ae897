"""Compiled artifacts as torch gathers them: what a file of ``torch.compiler.save_cache_artifacts`` is made of."""

from __future__ import annotations

from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_MANAGER = "torch.compiler._cache:CacheArtifactManager"
_LOST = "a cache directory cannot be packed (cftdiag cache --pack)"

NAMES = (
    Name(f"{_MANAGER}.with_fresh_cache", "trainer", _LOST),
    Name(f"{_MANAGER}.record_artifact", "trainer", _LOST, parameters=("artifact_type", "key", "content")),
    Name(f"{_MANAGER}.serialize", "trainer", _LOST),
    Name(f"{_MANAGER}._ensure_cache_artifacts_registered", "trainer", _LOST, alias="register_artifacts"),
)

_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)
