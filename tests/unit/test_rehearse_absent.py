"""What a script asks for and this machine has not: packages of kernels, kernels, ranks of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from cftdiag.fastforward import REAL, SKIPPED, SkipMode, numbers_from, status
from cftdiag.rehearse import absent_kernels, absent_packages, ranks
from cftdiag.rehearse.settings import Rehearsal


@pytest.fixture
def flash() -> Iterator[Any]:
    if find_spec("flash_attn") is not None:
        pytest.skip("the package itself is here")
    absent_packages.install(("flash_attn",))
    import flash_attn

    yield flash_attn
    sys.meta_path.pop()
    for name in [name for name in sys.modules if name.split(".")[0] == "flash_attn"]:
        del sys.modules[name]


def test_package_is_absent_until_it_is_asked_for() -> None:
    if find_spec("flash_attn") is not None:
        pytest.skip("the package itself is here")
    before = list(sys.meta_path)
    absent_packages.install(())
    assert sys.meta_path == before


def test_flash_attention_has_its_functions_and_shapes(flash: Any) -> None:
    from flash_attn.bert_padding import pad_input, unpad_input  # type: ignore[import-not-found,unused-ignore]
    from flash_attn.flash_attn_interface import flash_attn_varlen_func  # type: ignore[import-not-found,unused-ignore]

    qkv = torch.ones(2, 5, 3, 4, 8, dtype=torch.bfloat16)
    assert flash.flash_attn_func(*qkv.unbind(2), causal=True).shape == (2, 5, 4, 8)
    assert flash.flash_attn_qkvpacked_func(qkv).shape == (2, 5, 4, 8)
    out, lse, _ = flash.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], return_attn_probs=True)
    assert out.shape == (2, 5, 4, 8) and lse.shape == (2, 4, 5)
    rows, mask = torch.arange(10.0).view(2, 5, 1), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    kept, indices, ends, longest, used = unpad_input(rows, mask)
    assert (kept.flatten().tolist(), ends.tolist(), longest) == ([0, 1, 2, 5, 6, 7, 8, 9], [0, 3, 8], 5)
    assert used.tolist() == [3, 5]
    assert torch.equal(pad_input(kept, indices, 2, 5), rows * mask[:, :, None])
    heads = qkv.flatten(0, 1)[:8]
    varlen = flash_attn_varlen_func(*heads.unbind(1), ends, ends, longest, longest)
    assert varlen.shape == (8, 4, 8)
    assert flash.flash_attn_varlen_qkvpacked_func(heads, ends, longest).shape == (8, 4, 8)


def test_launched_kernel_leaves_what_it_may_have_written_uncomputed() -> None:
    launches = absent_kernels.Launches()

    class KernelInterface:
        pass

    def scale() -> None:
        raise AssertionError("there is no device to run on")

    class Kernel(KernelInterface):
        fn = staticmethod(scale)

    module: Any = type("module", (), {"KernelInterface": KernelInterface})
    absent_kernels._replace(launches, module)
    out, counts = torch.ones(3), torch.arange(3)
    Kernel()[(1,)](out, counts, BLOCK=128)  # type: ignore[index]
    assert (status(out), status(counts)) == (SKIPPED, REAL)
    assert "scale" in launches.notes()[0]


def test_operator_without_a_kernel_here_has_the_shapes_of_its_fake() -> None:
    @torch.library.custom_op("cftdiag_test::doubled", mutates_args=(), device_types="cuda")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("there is no such device")

    @doubled.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(2 * x.shape[0])

    numbers_from(lambda: 0.25)
    try:
        with SkipMode():
            out = doubled(torch.ones(3))
            assert out.shape == (6,) and out.sum().item() == 0.25
        with SkipMode(), pytest.raises(RuntimeError):
            torch.ones(3) @ torch.ones(4)  # torch's own operators fail as ever
    finally:
        numbers_from(lambda: 1.0)


def test_script_that_spawns_its_ranks_runs_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mp, "spawn", mp.spawn)
    ranks._spawn_in_place(Rehearsal(run_dir="", scratch="", rank=5))
    ran: list[tuple[int, str]] = []
    assert mp.spawn(lambda rank, word: ran.append((rank, word)), args=("a",), nprocs=4) is None
    assert mp.spawn(lambda rank: ran.append((rank, "")), nprocs=8, join=False).join()
    assert ran == [(1, "a"), (5, "")]
