"""`make bench-gpu`: measures kernels, passes and steps on a GPU.

    python -m benchmarks.gpu                     everything, into benchmarks/results/gpu.md
    python -m benchmarks.gpu --tiny --out PATH   the same code in Triton's interpreter; figures mean nothing

Results are checked before they are timed; all takes eight minutes. A section is a function and one line of
`SECTIONS`. It runs with what a machine has: the report names missing libraries. Nothing here needs more
than torch, triton and transformers.
"""
