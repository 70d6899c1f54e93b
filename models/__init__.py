"""Data only: the registry of known models (`registry.toml`), and trained drafts."""
