"""Probes: compare our passes with `transformers` before serving a model."""
