"""Use our speculators in other engines: one package per engine."""
