"""Checks of a call before its handler: connection, size, time and key."""
