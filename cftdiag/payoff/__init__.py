"""Does it pay, does it fit: what torch.compile gains in time and memory on a device that need not be there.

``measure`` counts, in a child, what a training step launches and keeps, eager and as generated for the target;
``estimate`` makes times, memory and a break-even step of it, and says by which assumptions.
"""
