"""Layers that do not lie on the device: kept in host memory or in a file, copied there one after another."""
