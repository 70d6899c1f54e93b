"""Grows token trees with a draft model."""
