"""`make bench-gpu`: measures kernels, passes and steps on a GPU.

    python -m benchmarks.gpu                     everything, into benchmarks/results/gpu.md
    python -m benchmarks.gpu --tiny --out PATH   the same code in Triton's interpreter; figures mean nothing

Kernels are checked before they are timed. The whole run takes eight minutes. A section is a generator of Markdown lines
and one line of `SECTIONS`. Only torch, triton and transformers are needed.
"""
