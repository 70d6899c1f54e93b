"""Metrics, logs and traces of a gateway: listeners to `gateway.events`, wired in `gateway.app`."""
