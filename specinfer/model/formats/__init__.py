"""Formats of weights in memory: `FORMATS` in `registry.py` has all of them.

A new format of blocks is a quantiser, an entry in `BLOCK_FORMATS`, and a kind of storage of the compiled kernels.
"""
