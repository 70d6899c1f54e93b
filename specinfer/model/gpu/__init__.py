"""Triton kernels for models on a GPU, with plans and launches.

    description    a pass as one flat array of numbers, copied to the device once
    attention      tree attention over the paged cache
    decoder        norms, rotary positions and activation, each one kernel
    compaction     moving accepted entries of the cache
    graphs         replaying captured passes
    choice         the target's choices, made where the logits are
    growth         whole trees of a draft model in one captured sequence

Needs the extra `gpu` (Triton). Nothing here was measured on a GPU yet: results are compared in Triton's
interpreter, and every kernel is compiled for sm_80 and sm_90 (tests/unit/model/gpu).
"""
