"""What changed between two documents of cftdiag: checks, runs, kernels reports and plans. Pure and torch-free.

:func:`diff` compares; :func:`fingerprint` is the identity of a finding over time, which a baseline and code
scanning keep.
"""

from __future__ import annotations

from cftdiag.compare.change import EFFECTS, SCHEMA, Change, Diff
from cftdiag.compare.documents import diff
from cftdiag.compare.fingerprint import fingerprint, fingerprints

__all__ = ["EFFECTS", "SCHEMA", "Change", "Diff", "diff", "fingerprint", "fingerprints"]
