"""Checks of a call before its handler: connection, bounds and key."""
