"""A speculator that learns from the traffic it serves."""
