"""The engine: plan, draft, verify, commit, learn; the same for `LLM`, `serve` and the services."""
