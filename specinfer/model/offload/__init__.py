"""Offloads layers to host memory or a file; each pass copies them."""
