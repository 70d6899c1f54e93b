"""Measure the speed of whole systems, plain and with speculation."""
