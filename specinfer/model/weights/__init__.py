"""Weights and configurations: files, families, quantisation, draft checkpoints."""
