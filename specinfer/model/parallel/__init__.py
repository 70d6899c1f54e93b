"""One model on several devices: tensor parallelism (Megatron-LM, arXiv 1909.08053) and pipeline parallelism
(GPipe, arXiv 1811.06965) over `torch.distributed`.

A rank is a process with one device. Rank 0 keeps the books of the cache and says what is run; the others
follow it. Whoever starts the ranks (torchrun) is no business of this package.
"""
