"""Requests of one target: admission, batches, budgets, commit, text. Pure."""
