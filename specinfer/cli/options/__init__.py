"""Options of commands: shared options, options of requests, choices."""
