"""A simulated system for the planner."""
