"""A gateway under load, between streams and a verifier of fixed step time, each in its own process."""
