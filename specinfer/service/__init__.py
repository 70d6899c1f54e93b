"""Provide settings, servers, channels, threads, metrics and logs to services."""
