"""Offloaded layers: stored in host memory or a file, copied per pass."""
