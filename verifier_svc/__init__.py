"""The verifier service: verifies token trees in passes of the target."""
