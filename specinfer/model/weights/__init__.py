"""Reads weights and configurations of checkpoints, and writes draft checkpoints."""
