"""Choice of the speculators and of the verified nodes, by measured tokens and seconds of steps. Pure."""

PLANNERS = ("measured", "learned")
"""Names of the planners; a file of weights stands for the learned one, too."""
