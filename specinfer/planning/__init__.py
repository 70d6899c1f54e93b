"""Chooses speculators and verified nodes by measured tokens and seconds. Pure."""

PLANNERS = ("measured", "learned")
"""Names of the planners. A weights file selects the learned one."""
