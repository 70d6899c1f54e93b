"""The forward pass in C++ for CPUs with AVX-512, compiled on first use (see kernels.cpp)."""
