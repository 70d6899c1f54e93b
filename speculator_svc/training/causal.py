"""Attention in training: whole sequences side by side, nothing cached."""

import torch
import torch.nn.functional as F

from specinfer.model.layers.layer import Attend


def causal_attention(batch: int, length: int) -> Attend:
    """Of `batch` sequences of `length` tokens, one behind the other. Padding is on the right and attention
    causal, so no real token sees it."""

    def attend(_: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        heads = (t.to(value.dtype).view(batch, length, *t.shape[1:]) for t in (query, key, value))
        q, k, v = (t.transpose(1, 2) for t in heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).flatten(0, 1)

    return attend
