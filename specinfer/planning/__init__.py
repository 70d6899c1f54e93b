"""Choice of the speculators and of the verified nodes, from measured acceptance and latency. Pure."""
