"""What the lengths of the user's data will cost: which of them compile, at which step, and which regions of
batch x length share a graph.

Torch-free but for :mod:`~cftdiag.forecast.frame_locals` and :mod:`~cftdiag.forecast.sweep`, which run inside
a pass.
"""
