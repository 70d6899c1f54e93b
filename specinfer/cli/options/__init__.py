"""Options of commands: shared ones, those of requests, and choices."""
