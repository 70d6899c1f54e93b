"""Metrics, logs and traces: listeners to `gateway.events`."""
