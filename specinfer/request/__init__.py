"""Values of a request: its sampling parameters, statuses and features."""
