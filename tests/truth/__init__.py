"""Truth test of `--target cpu`: the same small programs predicted without a compiler, and trained for real
with Inductor and g++.
"""
