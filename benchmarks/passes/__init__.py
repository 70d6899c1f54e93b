"""Milliseconds and GB/s of passes by rows, compared with llama.cpp."""
