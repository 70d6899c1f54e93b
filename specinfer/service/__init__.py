"""Plumbing that every service has: settings, server, channel, engine thread, metrics, logs."""
