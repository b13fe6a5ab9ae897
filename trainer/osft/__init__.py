"""Orthogonal subspace fine-tuning: train the low singular directions of a weight, and keep every update
orthogonal to the high ones.
"""
