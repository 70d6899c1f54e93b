"""Training SSMs: a corpus of the target's own continuations, its distributions as labels, a small decoder."""
