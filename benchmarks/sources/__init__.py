"""Measure the acceptance of every drafter by kind of prompt."""
