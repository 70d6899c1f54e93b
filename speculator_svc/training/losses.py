"""Distances of a draft Q from the target's most probable tokens P, by which drafters learn. Knows no model."""

from enum import StrEnum
from typing import Protocol

import torch

_LEAST_ACCEPTED = 1e-6
"""Acceptance below which only the cross-entropy teaches."""
_STEEPNESS = 3.0
"""Rate at which lk_hybrid turns from KL to TV as acceptance grows."""


class Labelled(Protocol):
    """Labels of R tokens by the target."""

    @property
    def label_ids(self) -> torch.Tensor:
        """[R, K] indices into the draft vocabulary."""

    @property
    def label_probabilities(self) -> torch.Tensor:
        """[R, K] renormalised over these tokens."""


class LossName(StrEnum):
    """Names of the losses."""

    LK_LOG = "lk-log"
    LK_HYBRID = "lk-hybrid"


def distillation_loss(name: LossName, logits: torch.Tensor, batch: Labelled) -> torch.Tensor:
    """Return the mean loss of logits [R, draft vocabulary] over the rows of a batch."""
    return _LOSSES[name](logits, batch)


def lk_log(logits: torch.Tensor, batch: Labelled) -> torch.Tensor:
    """Return the mean of cross-entropy minus log acceptance.

    The cross-entropy of Q under P measures all of P. Minus log sum(min(P, Q)) measures the accepted part of Q
    (an LK loss, arXiv 2602.23881): a model too small for all of P is to spend itself on that. Where the
    draft vocabulary has nothing of P there is nothing to learn.
    """
    p, log_q, accepted = _compared(logits, batch)
    cross_entropy = -(p * log_q).sum(-1)
    return (cross_entropy - (p.sum(-1) > 0) * accepted.clamp_min(_LEAST_ACCEPTED).log()).mean()


def lk_hybrid(logits: torch.Tensor, batch: Labelled) -> torch.Tensor:
    """Return the mean of lambda * KL + (1 - lambda) * TV, with lambda = exp(-3 * acceptance) of each row.

    TV = 1 - acceptance is what is to be made small (arXiv 2602.23881), but has hardly a gradient where Q is far
    from P: there KL leads. Lambda itself teaches nothing.
    """
    p, log_q, accepted = _compared(logits, batch)
    share = (-_STEEPNESS * accepted.detach()).exp()
    divergence = (torch.xlogy(p, p) - p * log_q).sum(-1)
    return (share * divergence + (1 - share) * (p.sum(-1) - accepted)).mean()


def _compared(logits: torch.Tensor, batch: Labelled) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return P and log Q at the labels [R, K], and the acceptance sum(min(P, Q)) of each row."""
    p = batch.label_probabilities
    log_q = logits.gather(-1, batch.label_ids) - logits.logsumexp(-1, keepdim=True)
    return p, log_q, torch.minimum(p, log_q.exp()).sum(-1)


_LOSSES = {LossName.LK_LOG: lk_log, LossName.LK_HYBRID: lk_hybrid}
