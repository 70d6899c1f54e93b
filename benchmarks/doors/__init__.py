"""Honest callers of a whole system beside callers that try to take it from them."""
