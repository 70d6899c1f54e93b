"""Acceptance of every drafter by kind of prompt."""
