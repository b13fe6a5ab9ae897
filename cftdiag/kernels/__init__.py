"""`cftdiag kernels`: the code that Inductor generates for each kind of block, kernel by kernel.

:func:`kernels` is its Python call.
"""

from cftdiag.kernels.job import kernels

__all__ = ["kernels"]
