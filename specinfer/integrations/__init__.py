"""Our speculators inside other engines: one package per engine, loaded by that engine."""
