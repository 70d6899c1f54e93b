"""Properties that only a GPU can show: 16-bit types, captured graphs, real sizes.

The tests of `tests/unit/model/gpu` run there, too, with the same kernels compiled instead of interpreted.
"""
