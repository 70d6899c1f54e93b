"""The engine: plan, draft, verify, commit and learn."""
