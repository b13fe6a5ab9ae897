"""How much a part of a training step computes and moves, and how long a device needs for it at least. Torch-free.

The time of one launch is the larger of its bytes by the memory's bandwidth and its FLOPs by the peak of the
units that do them (roofline), each by a share of the peak that such code reaches in practice.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from cftdiag.target.devices import Device


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One kernel or library call, as often as ``count`` says."""

    name: str
    """The operator or kernel."""
    bytes: int
    """Moved to and from memory: each input read once, each output written once."""
    flops: int = 0
    product: bool = False
    """A matrix product, a convolution or attention: on the tensor cores in half precision."""
    half: bool = True
    """In 16-bit floating point."""
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Launches in no order."""

    launches: tuple[Launch, ...] = ()

    @classmethod
    def of(cls, launches: Iterable[Launch]) -> Work:
        """The same launches counted once each."""
        counts: collections.Counter[Launch] = collections.Counter()
        for one in launches:
            counts[dataclasses.replace(one, count=1)] += one.count
        return cls(tuple(dataclasses.replace(one, count=n) for one, n in counts.items() if n))

    def __add__(self, other: Work) -> Work:
        return Work.of((*self.launches, *other.launches))

    def times(self, factor: int) -> Work:
        """This work ``factor`` times."""
        return Work(tuple(dataclasses.replace(one, count=one.count * factor) for one in self.launches))

    @property
    def kernels(self) -> int:
        """Launches in all."""
        return sum(one.count for one in self.launches)

    @property
    def bytes(self) -> int:
        """Bytes moved in all."""
        return sum(one.bytes * one.count for one in self.launches)

    @property
    def flops(self) -> int:
        """FLOPs of products and attention."""
        return sum(one.flops * one.count for one in self.launches if one.product)

    @property
    def bytes_beside(self) -> int:
        """Bytes moved beside products and attention: what fusing can save."""
        return sum(one.bytes * one.count for one in self.launches if not one.product)

    @property
    def products(self) -> int:
        """Launches of products and attention."""
        return sum(one.count for one in self.launches if one.product)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What share of a device's peaks code reaches, and what the host needs for a launch."""

    bandwidth: float
    products: float
    host_us: float
    """Microseconds of the host for each launch; it limits where it is longer than the device needs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Time of some work on a device."""

    device: float
    products: float
    """Of ``device``, that of products and attention."""
    host: float

    @property
    def total(self) -> float:
        """The slower of both: the host runs ahead of the device or is waited for."""
        return max(self.device, self.host)

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            device=self.device + other.device,
            products=self.products + other.products,
            host=self.host + other.host,
        )


def seconds(work: Work, device: Device, rates: Rates) -> Seconds:
    """How long the work takes at these rates."""
    bandwidth = device.dram_gbps * 1e9 * rates.bandwidth
    total = products = 0.0
    for one in work.launches:
        peak = (
            device.bf16_tflops * rates.products
            if one.product and one.half
            else device.fp32_tflops * (rates.products if one.product else 1.0)
        ) * 1e12
        time = max(one.bytes / bandwidth, one.flops / peak) * one.count
        total += time
        products += time if one.product else 0.0
    return Seconds(device=total, products=products, host=work.kernels * rates.host_us * 1e-6)


def summary(work: Work) -> Mapping[str, Any]:
    """JSON-ready figures of a work."""
    return {
        "kernels": work.kernels,
        "products": work.products,
        "bytes": work.bytes,
        "bytes_beside_products": work.bytes_beside,
        "product_flops": work.flops,
    }
