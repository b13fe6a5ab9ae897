"""Measured, not estimated: the same training with and without torch.compile, side by side on this machine.

``arms`` says what is compared, ``driver`` runs it in fresh processes, ``statistics`` pairs the steps, ``summary``
makes the answer of it. All but ``worker``, which is the process that trains, are torch-free.
"""
