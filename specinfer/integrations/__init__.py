"""Our speculators in other engines: one package per engine."""
