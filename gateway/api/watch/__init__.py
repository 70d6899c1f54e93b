"""`Generation.Watch`: send live steps to watching clients."""
