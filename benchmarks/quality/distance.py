"""Distance of next-token distributions from those of a reference."""

from typing import NamedTuple

import torch


class Distance(NamedTuple):
    """Distance of a format from the reference."""

    mean: float
    """Mean KL divergence."""
    high: float
    """99th percentile of the KL divergences."""
    same: float
    """Share of equal first tokens."""

    @classmethod
    def of(cls, kl: torch.Tensor, same: torch.Tensor) -> "Distance":
        """Return the mean distance, from KL and equality of first tokens."""
        return cls(kl.mean().item(), kl.quantile(0.99).item(), same.float().mean().item())


def distances(logits: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's KL divergence, and equality of the maximum."""
    wanted = reference.log_softmax(-1)
    kl = (wanted.exp() * (wanted - logits.log_softmax(-1))).sum(-1)
    return kl, logits.argmax(-1) == reference.argmax(-1)
