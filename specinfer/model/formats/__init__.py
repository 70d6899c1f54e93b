"""Formats of weights in memory: `FORMATS` in `registry.py` has all of them.

A new format of blocks needs a quantiser, an entry in `BLOCK_FORMATS`, and a storage class in the compiled kernels.
"""
