"""Probes: compare our passes with `transformers` before a model is served."""
