"""Figures 7 and 11 of the paper, measured with what there is: one part per file."""
