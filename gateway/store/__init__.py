"""Requests and leases in Redis, and the scripts that keep their rules (docs/protocol.md, Ownership).

Nothing outside this package knows Redis.
"""
