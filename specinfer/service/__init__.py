"""Settings, server, channels, threads, metrics and logs of every service."""
