"""Offloaded layers, in host memory or files, copied in turn."""
