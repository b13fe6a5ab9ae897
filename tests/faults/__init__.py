"""Faults at random places of real models, whose truth is torch's own log: ``make faults SEED=n``."""
