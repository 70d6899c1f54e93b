"""The gateway: owns every request's committed tokens, merges speculators' trees, calls the verifier."""
