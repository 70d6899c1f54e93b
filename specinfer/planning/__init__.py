"""Choice of the speculators and of the verified nodes, by measured tokens and seconds of steps. Pure."""
