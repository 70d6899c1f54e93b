"""Options of commands: those that several share, those of a request, and values of which there are few."""
