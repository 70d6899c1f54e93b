"""Verification of token trees: the engine, acceptance rules and logit adjustments."""
