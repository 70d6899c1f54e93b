"""Runs one model on several devices, over `torch.distributed`.

Tensor parallelism is that of Megatron-LM (arXiv 1909.08053), pipeline parallelism that of GPipe (arXiv
1811.06965).

A rank is a process with one device. Rank 0 allocates the cache and decides what is run; the others
follow it. The start of the ranks (torchrun) is not part of this package.
"""
