"""Training data from text of this machine, which the target reads."""
