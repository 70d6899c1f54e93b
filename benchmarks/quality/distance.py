"""Compute the distance of next-token distributions from a reference's."""

from typing import NamedTuple

import torch


class Distance(NamedTuple):
    """Distance of a format from the reference."""

    mean: float
    """Mean KL divergence, in nats."""
    high: float
    """99th percentile of the KL divergences, in nats."""
    same: float
    """Share of positions with the same most probable token."""

    @classmethod
    def of(cls, kl: torch.Tensor, same: torch.Tensor) -> "Distance":
        return cls(kl.mean().item(), kl.quantile(0.99).item(), same.float().mean().item())


def distances(logits: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's KL divergence, and whether the top tokens are equal."""
    wanted = reference.log_softmax(-1)
    kl = (wanted.exp() * (wanted - logits.log_softmax(-1))).sum(-1)
    return kl, logits.argmax(-1) == reference.argmax(-1)
