"""The most probable tokens of many rows of logits. Pure."""

import torch

_BLOCK = 256
"""Tokens per block, whose maximum is looked at first."""


def most_probable(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Return [N, k] tokens of the largest logits [N, V] in each row, largest first.

    Only the k blocks of tokens with the largest maxima can hold them. On a processor finding those first
    takes a third of the time of `topk` over whole rows: 25 rows of 49,152 tokens 0.9 -> 0.3 ms.
    """
    rows, tokens = logits.shape
    blocks = tokens // _BLOCK
    if blocks <= k or logits.device.type != "cpu":
        return logits.topk(k, dim=-1).indices
    whole = blocks * _BLOCK
    blocked = logits[:, :whole].view(rows, blocks, _BLOCK)
    best = blocked.amax(-1).topk(k, dim=-1).indices
    ids = (best[:, :, None] * _BLOCK + torch.arange(_BLOCK)).view(rows, -1)
    rest = torch.arange(whole, tokens).expand(rows, -1)
    ids = torch.cat([ids, rest], dim=1)
    return ids.gather(1, logits.gather(1, ids).topk(k, dim=-1).indices)
