"""`make bench-gpu`: kernels, passes and steps on a GPU, checked first, in eight minutes.

    python -m benchmarks.gpu                     everything, into benchmarks/results/gpu.md`
    python -m benchmarks.gpu --tiny --out PATH   the same code in Triton's interpreter; figures mean nothing

A section is a function in a file of its own and one line in `sections.py`. It runs with what a machine has:
of what cannot be imported the report says so, by name. Nothing here needs more than torch, triton and
transformers, but for the section that starts the services.
"""
