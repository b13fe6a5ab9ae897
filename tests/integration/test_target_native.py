"""The device stub: its layout, its cache, and what it says where it cannot work."""

import multiprocessing
from types import SimpleNamespace

import pytest
import torch

from cftdiag.target import native


def test_the_table_copy_has_the_size_of_torchs_own():
    from pathlib import Path

    loaded = native.library()
    sizes = {
        native.table_size(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"),
        native.table_size(Path(loaded._name)),
    }
    assert sizes - {None} == {loaded.interface_slots()}


def test_nested_and_switched_off_again():
    before = torch.accelerator.current_accelerator()
    with native.switched_on():
        with native.switched_on():
            pass
        assert torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.current_accelerator() == before


def test_headers_that_do_not_fit_the_library_are_refused():
    slots = native.library().interface_slots()
    native.check_layout(native.library())
    with pytest.raises(native.StubUnavailable, match=f"has {slots} CUDA hooks, its headers say {slots + 1}"):
        native.check_layout(SimpleNamespace(interface_slots=lambda: slots + 1))


def test_without_a_compiler_the_message_names_the_way_out(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    with pytest.raises(native.StubUnavailable, match=r"no C\+\+ compiler .*--target cpu"):
        native.build(tmp_path / "guard.so")


def test_a_torch_that_the_stub_does_not_compile_against_is_refused(monkeypatch, tmp_path):
    broken = tmp_path / "guard.cpp"
    broken.write_text("#include <ATen/detail/CUDAHooksInterface.h>\nint x = at::CUDAHooksInterface::gone;\n")
    monkeypatch.setattr(native, "SOURCE", broken)
    with pytest.raises(native.StubUnavailable, match="does not compile against torch"):
        native.build(tmp_path / "guard.so")


def _load(folder, queue):
    import os

    os.environ["CFTDIAG_CACHE_DIR"] = folder
    native.library.cache_clear()
    queue.put(native.library()._name)


def test_two_processes_build_it_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_load, args=(str(tmp_path), queue)) for _ in range(2)]
    for process in processes:
        process.start()
    names = {queue.get(timeout=1500) for _ in processes}
    for process in processes:
        process.join()
    assert len(names) == 1
    assert [p.suffix for p in tmp_path.iterdir() if p.name != "guard.lock"] == [".so"]


def test_the_key_changes_with_torch_and_with_the_source(monkeypatch, tmp_path):
    key = native.build_key()
    monkeypatch.setattr(torch, "__version__", "9.9")
    other = native.build_key()
    changed = tmp_path / "guard.cpp"
    changed.write_text("// other")
    monkeypatch.setattr(native, "SOURCE", changed)
    assert len({key, other, native.build_key()}) == 3
