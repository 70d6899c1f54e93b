"""Formats of weights in memory: `FORMATS` in `registry.py` has all of them.

CONTRIBUTING.md lists what a new format of blocks needs.
"""
