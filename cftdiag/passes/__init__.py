"""Passes: what a check runs in child processes, and how they are started and heard."""
