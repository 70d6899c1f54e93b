"""Properties that need a GPU: 16-bit types, captured graphs, real sizes.

On a GPU, the tests of `tests/unit/model/gpu` also run with compiled instead of interpreted kernels.
"""
