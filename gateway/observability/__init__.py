"""Metrics, logs and traces of a gateway, from `gateway.events`."""
