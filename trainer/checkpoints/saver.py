"""Saving while training goes on: a copy on the host, written by a thread, one at a time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from trainer.checkpoints.layout import PARTIAL, State, commit, copy_assets, step_path, sum_of
from trainer.checkpoints.tensors import RankState, encode, failure_text, rank_key


class Saver:
    """Writes checkpoints of all ranks into one directory; a context manager, which waits for the last one.

    A save that fails is told and training goes on: what was written before is whole, and the next save is
    another try.
    """

    def __init__(
        self, directory: Path, assets: Path, *, device: torch.device, keep: int, say: Callable[[str], None]
    ) -> None:
        """``assets`` holds what each checkpoint gets a copy of. ``say`` prints on rank 0. Collective."""
        self.error: str | None = None
        """Why the last save failed; None when it did not."""
        self._directory, self._assets, self._keep, self._say = directory, assets, keep, say
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        # The thread's collectives must not meet those of training, which run at the same time.
        self._group = dist.new_group(backend="gloo")
        cuda = device.type == "cuda"
        # Pinned copies are kept from one save to the next: only one save is ever in flight.
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=cuda,
            )
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path | None] | None = None
        self._path = directory

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.wait()
        self._thread.shutdown()
        self._stager.close()

    def save(self, tensors: dict[str, Tensor], own: RankState, state: State) -> None:
        """Copy everything and start to write it; waits first while an earlier save is still being written.
        Collective.
        """
        self.wait()
        partial = step_path(self._directory, state.step)
        partial = partial.with_name(partial.name + PARTIAL)
        values: dict[str, Any] = {**tensors, rank_key(self._rank): encode(own)}
        upload = dcp.async_save(
            values, checkpoint_id=str(partial), process_group=self._group, async_stager=self._stager
        )
        assert isinstance(upload, Future)
        self._path = partial
        self._pending = self._thread.submit(self._finish, upload, partial, state)

    def wait(self) -> None:
        """Until what is being written is there, or has failed."""
        if self._pending is not None:
            started = time.perf_counter()
            self._pending.exception()
            if (seconds := time.perf_counter() - started) > 1:
                self._say(f"waited {seconds:.1f} s for a checkpoint to be written")
            self.poll()

    def require(self) -> None:
        """Raise ``ValueError`` when the last save failed."""
        if self.error is not None:
            raise ValueError(
                f"the last checkpoint could not be written to {self.error}; earlier ones are whole"
            )

    def poll(self) -> None:
        """Tell what has come of a save that is finished by now."""
        if self._pending is None or not self._pending.done():
            return
        failed, done = self._pending.exception(), self._pending
        self._pending = None
        self.error = None if failed is None else f"{self._path}: {failure_text(failed)}"
        if failed is not None:
            self._say(
                f"warning: no checkpoint was written to {self.error}. Training goes on; earlier checkpoints are kept"
            )
        elif (path := done.result()) is not None:
            self._say(f"checkpoint {path}")

    def _finish(self, upload: Future[Any], partial: Path, state: State) -> Path | None:
        # DCP ends with an answer of rank 0 to all: by then every rank has written and synced its files, or
        # all of them get the failure.
        try:
            upload.result()
            sums = self._sums(partial)
            if self._rank == 0:
                copy_assets(self._assets, partial)
                return commit(partial, state, keep=self._keep, sums=sums)
        except BaseException:
            if self._rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        return None

    def _sums(self, partial: Path) -> dict[str, str]:
        """Checksums of the tensors' files, each made by the rank that wrote it. Collective. Raises ``OSError`` on
        rank 0 for a file that cannot be read.
        """
        mine: dict[str, str] | str
        try:
            mine = {file.name: sum_of(file) for file in partial.glob(f"__{self._rank}_*.distcp")}
        except OSError as error:
            mine = f"{error.filename}: {error.strerror or error}"
        everyone: list[dict[str, str] | str] = [{} for _ in range(self._world)]
        dist.all_gather_object(everyone, mine, group=self._group)
        sums: dict[str, str] = {}
        for rank, part in enumerate(everyone):
            if isinstance(part, str):
                raise OSError(f"rank {rank} cannot read what it wrote: {part}")
            sums |= part
        return sums
