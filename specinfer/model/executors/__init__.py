"""Executors of flattened passes: torch, the compiled kernels, models of `transformers` as they are."""
