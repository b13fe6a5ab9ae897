"""What needs a CUDA device; `python -m tests.gpu` prints how far predictions for it agree with it."""
