"""Measures how formats of weights and caches change next-token distributions."""
