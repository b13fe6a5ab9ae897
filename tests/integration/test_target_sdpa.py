"""Which attention kernel torch takes on a device, by its documented rules
(aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
"""

import pytest
import torch

from cftdiag.target import DEVICES, sdpa

H200, A100 = DEVICES["h200"], DEVICES["a100"]


def qkv(*, heads=8, kv_heads=8, length=64, keys=64, width=128, dtype=torch.bfloat16):
    def make(h, n):
        return torch.empty(2, h, n, width, dtype=dtype, device="meta")

    return make(heads, length), make(kv_heads, keys), make(kv_heads, keys)


def mask(dtype=torch.bfloat16):
    return torch.empty(2, 1, 64, 64, dtype=dtype, device="meta")


@pytest.fixture(autouse=True)
def no_cudnn(monkeypatch):
    monkeypatch.delenv(sdpa.CUDNN_VARIABLE, raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)


@pytest.mark.parametrize(
    ("tensors", "options", "kernel"),
    [
        (qkv(), {"causal": True}, "flash"),
        (qkv(kv_heads=2), {"causal": True, "enable_gqa": True}, "flash"),
        (qkv(width=100), {}, "flash"),  # torch pads the head dimension
        (qkv(width=256), {}, "flash"),
        (qkv(width=288), {}, "efficient"),
        (qkv(), {"mask": mask()}, "efficient"),
        (qkv(dtype=torch.float32), {}, "efficient"),
        (qkv(keys=32), {"causal": True}, "efficient"),  # flash aligns a causal mask to the other corner
        (qkv(width=100, dtype=torch.bfloat16), {"mask": mask()}, "math"),
        (qkv(dtype=torch.float64), {}, "math"),
        (qkv(kv_heads=2), {"causal": True}, "math"),
    ],
)
def test_choice_without_cudnn(tensors, options, kernel):
    assert sdpa.choose(H200, *tensors, **options)[0] == kernel


def test_reasons_are_told():
    kernel, why = sdpa.choose(A100, *qkv(), mask=mask())
    assert (kernel, why) == ("efficient", "not flash: a mask is given")


@pytest.mark.parametrize(
    ("spec", "version", "kernel"),
    [
        (H200, "91501", "cudnn"),
        (H200, "91002", "flash"),
        (A100, "91501", "flash"),
        (DEVICES["b200"], "92000", "cudnn"),
    ],
)
def test_cudnn_comes_first_from_its_version_and_capability_on(spec, version, kernel, monkeypatch):
    monkeypatch.setenv(sdpa.CUDNN_VARIABLE, version)
    assert sdpa.choose(spec, *qkv(), causal=True)[0] == kernel


def test_torchs_own_variable_puts_cudnn_last(monkeypatch):
    monkeypatch.setenv(sdpa.CUDNN_VARIABLE, "91501")
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert sdpa.choose(H200, *qkv())[0] == "flash"


def test_cudnn_takes_a_mask_but_no_wide_head(monkeypatch):
    monkeypatch.setenv(sdpa.CUDNN_VARIABLE, "91501")
    assert sdpa.choose(H200, *qkv(), mask=mask())[0] == "cudnn"
    assert sdpa.choose(H200, *qkv(width=256))[0] == "flash"


def test_a_kernel_switched_off_by_the_program_is_not_assumed():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert sdpa.choose(H200, *qkv())[0] == "math"
