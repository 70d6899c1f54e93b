"""Logits to distributions, and distributions to tokens."""
