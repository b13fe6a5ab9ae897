"""Full fine-tuning: every parameter that a step uses is trained, and the plain model is what is exported."""

from __future__ import annotations

from trainer.methods.method import Method


class Full(Method):
    """The model as it is."""
