"""The verifier service: checks whole token trees in one pass of the large model."""
