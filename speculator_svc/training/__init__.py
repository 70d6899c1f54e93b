"""Training of SSMs: the target's continuations, its labels, a small decoder."""
