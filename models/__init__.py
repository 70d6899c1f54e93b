"""Data only: the registry of known models (`registry.toml`), and the default model's SSM."""
