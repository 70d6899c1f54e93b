"""Runs one model on several devices, over `torch.distributed`.

Tensor parallelism is that of Megatron-LM (arXiv 1909.08053), pipeline parallelism that of GPipe (arXiv 1811.06965).

A rank is a process with one device. Rank 0 decides which passes run, and allocates the cache; the other ranks run the
same passes. Starting the ranks (torchrun) is not part of this package.
"""
