"""Offloaded weights, read at a stated bandwidth."""
