"""What is kept in Redis, and the scripts that keep its rules (docs/protocol.md, Ownership). The only room
that knows Redis."""
