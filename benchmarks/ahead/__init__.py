"""Drafting ahead of verdicts, against drafting between them, by round trips and times of passes."""
