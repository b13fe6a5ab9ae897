"""One runnable file a cause: ``build()`` gives a model and batches that show it (``cftdiag check --model
FILE.py:build``).
"""
