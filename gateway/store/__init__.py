"""Store requests and leases in Redis, by scripts (docs/protocol.md, Ownership).

No code outside this package uses Redis.
"""
