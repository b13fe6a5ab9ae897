"""The device table, without torch."""

import dataclasses
from pathlib import Path

import pytest

from cftdiag.target import DEVICES, TARGETS, TargetUnavailable, device
from cftdiag.target.devices import present


def test_importing_the_targets_imports_no_torch(run_python):
    run_python(
        "import sys, cftdiag.target, cftdiag.kernels.render, cftdiag.target.roofline, cftdiag.cli.kernels\nassert 'torch' not in sys.modules"
    )


def test_targets_are_the_documented_ones():
    assert list(TARGETS) == ["a100", "h100", "h200", "b200", "cpu"]
    assert TARGETS["cpu"] is None


# Figures of NVIDIA's datasheets and of the CUDA C++ Programming Guide's table of compute capabilities.
@pytest.mark.parametrize(
    ("name", "arch", "sms", "gbps", "fp32", "bf16", "shared"),
    [
        ("a100", "sm_80", 108, 2039, 19.5, 312, 166912),
        ("h100", "sm_90", 132, 3350, 67, 989.5, 232448),
        ("h200", "sm_90", 132, 4800, 67, 989.5, 232448),
        ("b200", "sm_100", 148, 7700, 75, 2250, 232448),
    ],
)
def test_figures_are_the_vendors(name, arch, sms, gbps, fp32, bf16, shared):
    d = DEVICES[name]
    assert (d.arch, d.multi_processor_count, d.dram_gbps, d.fp32_tflops, d.bf16_tflops) == (
        arch,
        sms,
        gbps,
        fp32,
        bf16,
    )
    assert d.shared_memory_per_block_optin == shared
    assert d.shared_memory_per_multiprocessor == shared + 1024  # 1 KB a block is the system's


def test_fp32_peak_follows_from_the_clock():
    for d in DEVICES.values():
        lanes = 64 if d.major == 8 else 128
        assert d.multi_processor_count * lanes * 2 * d.clock_rate * 1e3 / 1e12 == pytest.approx(
            d.fp32_tflops, rel=0.01
        )


def test_a_device_answers_to_the_names_of_torch():
    asked = "name major minor multi_processor_count total_memory warp_size regs_per_multiprocessor L2_cache_size gcnArchName".split()
    assert set(asked) <= {f.name for f in dataclasses.fields(DEVICES["h200"])}


def test_an_unknown_target_names_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown target 'v100'; use one of a100, h100, h200, b200, cpu"):
        device("v100")


def test_an_unavailable_target_names_the_depth_that_is_left():
    error = TargetUnavailable("h200", "no compiler")
    assert error.left == "joint"
    assert (
        str(error)
        == "cannot lower for h200 here: no compiler; depth joint is still available (leave out --target)"
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_the_gpu_that_is_here_is_named_by_its_driver(
    model: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda package: package)
    assert present(tmp_path) is None
    for bus, text in (("0000:01", model), ("0000:02", "NVIDIA B200")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {text}\nIRQ:   12\n")
    assert present(tmp_path) == name
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert present(tmp_path) is None


def test_without_triton_no_gpu_is_lowered_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "information").write_text("Model: NVIDIA H200\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    assert present(tmp_path) is None
