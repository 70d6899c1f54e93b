"""Checks from outside that a server's speculation does not change its answers."""
