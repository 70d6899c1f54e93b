"""Which speculators are asked and which nodes are verified, from measured acceptance and latency. Pure."""
