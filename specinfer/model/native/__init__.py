"""The C++ forward pass for AVX-512 or AVX2, compiled on first use."""
