"""Token trees expanded by a small model."""
