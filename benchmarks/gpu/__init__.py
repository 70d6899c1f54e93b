"""`make bench-gpu`: kernels, passes and steps on a GPU, checked first, in eight minutes.

    python -m benchmarks.gpu                     everything, into benchmarks/results/gpu.md
    python -m benchmarks.gpu --tiny --out PATH   the same code in Triton's interpreter; figures mean nothing

A section is a function and one line of `SECTIONS`. It runs with what a machine has: the report names what cannot be
imported. Nothing here needs more than torch, triton and transformers.
"""
