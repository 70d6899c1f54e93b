"""The verifier service: checks token trees in passes of the target."""
