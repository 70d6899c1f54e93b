"""Requests and leases in Redis, with scripts (docs/protocol.md, Ownership).

Nothing outside this package knows Redis.
"""
