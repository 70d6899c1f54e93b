"""Triton kernels for models on a GPU, with their descriptions and launches.

    description    a pass as one flat array of numbers, copied to the device once
    attention      tree attention over the paged cache
    decoder        norms, rotary positions and activation, one kernel each
    graphs         captured passes
    choice         the target's choices on the logits' device
    growth         whole trees of a draft model in one captured sequence

Needs Triton. Measured on an H200 (benchmarks/results/gpu.md). Tests compare results in Triton's
interpreter, and compile every kernel for sm_80 and sm_90 (tests/unit/model/gpu).
"""
