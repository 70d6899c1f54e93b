"""Compares our passes with `transformers`, before a model is served."""
