"""Clients of speculator services, for the gateway and other engines."""
