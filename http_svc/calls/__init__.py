"""Calls of functions and thoughts in answers: the grammar that an answer follows, and how its text is read."""
