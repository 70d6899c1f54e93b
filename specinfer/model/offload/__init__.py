"""Layers outside the device: kept in host memory or in a file, copied to it one after another."""
