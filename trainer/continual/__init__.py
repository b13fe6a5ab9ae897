"""Tasks in turn, each learned equally well: what does a method forget? ``python -m trainer.continual``.

A tiny model learns a base task in full, then tasks A, B and C one after the other by each method. Each task
starts from the exported model of the task before, so that OSFT decomposes the weights anew and LoRA's adapters
are merged. Who learns less forgets less: a task ends when its held-out loss has come down to one level, which is
the same for all tasks and methods.
"""
