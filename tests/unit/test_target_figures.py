"""Reading disassembly, the roofline and occupancy: pure functions."""

import pytest

from cftdiag.target import DEVICES
from cftdiag.target.roofline import bound, occupancy, ridge
from cftdiag.target.sass import bits, parse

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function triton_red_fused_0:
  REG:40 STACK:16 SHARED:1024 LOCAL:0 CONSTANT[0]:584 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
CODE = """
        /*0010*/                   LDG.E.EF.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.128.CONSTANT R8, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E.EL R5, desc[UR4][R2.64] ;
        /*0040*/                   DADD R2, R2, R4 ;
        /*0050*/                   F2F.F32.F64 R2, R2 ;
        /*0060*/                   STL.64 [R1], R2 ;
        /*0070*/                   LDL R2, [R1] ;
        /*0080*/                   STG.E.U16 desc[UR4][R2.64], R5 ;
        /*0090*/                   FADD R2, R2, R4 ;
"""


def test_registers_spills_widths_and_double_precision_are_read():
    usage = parse(USAGE, CODE)
    assert (usage.registers, usage.stack, usage.static_shared) == (40, 16, 1024)
    assert dict(usage.loads) == {128: 2, 32: 1}
    assert dict(usage.stores) == {16: 1}
    assert (usage.spill_stores, usage.spill_loads, usage.fp64, usage.widest) == (1, 1, 2, 128)


@pytest.mark.parametrize(
    ("suffix", "width"),
    [
        (".E.128", 128),
        (".E.EF.64", 64),
        (".E", 32),
        ("", 32),
        (".E.U16", 16),
        (".E.U8.CONSTANT", 8),
        (".E.ENL2.256", 256),
    ],
)
def test_width_of_an_access(suffix, width):
    assert bits(suffix) == width


def test_no_usage_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match="no resource usage"):
        parse("cuobjdump fatal: no such file", CODE)


def test_memory_bound_kernel():
    b = bound(DEVICES["h200"], flops=1_000_000, bytes_moved=48_000_000)
    assert b.limited_by == "memory"
    assert b.microseconds == pytest.approx(10.0)  # 48 MB at 4800 GB/s
    assert b.attainable_tflops == pytest.approx(b.intensity * 4.8)


def test_compute_bound_product_uses_the_tensor_cores():
    flops = 2 * 8192**3
    assert (
        bound(DEVICES["h200"], flops=flops, bytes_moved=3 * 2 * 8192**2, tensor_cores=True).limited_by
        == "compute"
    )
    fast = bound(DEVICES["h200"], flops=flops, bytes_moved=1, tensor_cores=True).microseconds
    assert fast == pytest.approx(flops / 989.5e12 * 1e6)


def test_a_kernel_that_moves_nothing_has_no_intensity():
    assert bound(DEVICES["h200"], flops=10, bytes_moved=0).intensity is None


def test_ridge_is_where_both_limits_meet():
    spec = DEVICES["a100"]
    at = ridge(spec)
    assert bound(spec, flops=int(at * 1e9 * 1.01), bytes_moved=10**9).limited_by == "compute"
    assert bound(spec, flops=int(at * 1e9 * 0.99), bytes_moved=10**9).limited_by == "memory"


# Against NVIDIA's occupancy calculator for compute capability 9.0.
@pytest.mark.parametrize(
    ("registers", "shared", "warps", "share"),
    [
        (32, 0, 4, 1.0),
        (128, 0, 4, 16 / 64),  # 4 blocks of 4 warps fit in 64 K registers
        (255, 0, 8, 8 / 64),
        (32, 100 * 1024, 8, 16 / 64),  # two blocks' shared memory fits
        (16, 0, 1, 32 / 64),  # 32 blocks at most
    ],
)
def test_occupancy(registers, shared, warps, share):
    assert occupancy(DEVICES["h200"], registers=registers, shared=shared, warps=warps) == pytest.approx(share)
