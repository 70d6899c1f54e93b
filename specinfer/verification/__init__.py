"""Verifies token trees: engine, acceptance rules, and adjustments of logits."""
