"""Measure the planner, in a simulated and in real systems."""
