"""Checks of the rules of plain technical English."""
