"""Checkpoints: what is in one, where they lie, how they are written while training goes on, and how a run
continues from one.
"""
