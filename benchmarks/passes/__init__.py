"""Milliseconds and GB/s of passes by rows, beside llama.cpp."""
