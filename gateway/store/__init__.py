"""Store requests and leases: in Redis (docs/protocol.md, Ownership), or in SQLite.

No code outside this package uses Redis or SQLite.
"""
