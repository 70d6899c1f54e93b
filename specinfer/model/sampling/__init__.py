"""Converts logits to distributions, and chooses tokens."""
