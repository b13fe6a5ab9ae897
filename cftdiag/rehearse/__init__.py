"""Running somebody's training script with its arithmetic skipped: the side that lives in the script's process.

Started by an injected ``sitecustomize`` as ``cftdiag run``'s monitor is; :mod:`cftdiag.check.script` starts the
processes and judges what they leave. Importing it imports no torch.
"""
