"""Growth of token trees with a draft model."""
