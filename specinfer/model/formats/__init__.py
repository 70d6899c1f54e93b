"""Formats of weights in memory: `FORMATS` in `registry.py` has all of them.

A new format of blocks needs an entry in `BLOCK_FORMATS`, if `gguf` quantises to it, and a storage class in the compiled
kernels.
"""
