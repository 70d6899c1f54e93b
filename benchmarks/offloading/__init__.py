"""Measure decoding with offloaded weights, read at a given bandwidth."""
