"""The zoo: the trainable model classes of the installed transformers, predicted and held against the truth."""
