"""Mechanical remedies as patches of the user's own files, and repros of findings for a bug report. Torch-free."""
