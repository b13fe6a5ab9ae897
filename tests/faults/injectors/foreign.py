"""Values go through numpy by a call that is not traced."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="graph_break",
        cause=("ffi_call", "unsupported_call"),
        log=r"ctypes|c_int|__new__|[Uu]nsupported|skipped",
        top="import ctypes",
        body="""
            width = ctypes.c_int(x.shape[-1]).value  # HERE
            x = x * (1.0 + 0.0 * width)
        """,
        advice=r"custom_op|out of|outside",
        mended={"body": "width = x.shape[-1]\nx = x * (1.0 + 0.0 * width)"},
    )
