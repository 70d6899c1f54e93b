"""The forward pass in C++ for CPUs with AVX-512 or AVX2, compiled on first use (see kernels.cpp)."""
