"""Measures long contexts: steps and quality by the storage of keys and values."""
