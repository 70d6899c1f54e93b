"""Distance of a draft Q from the target's most probable tokens P, by which drafters learn. Knows no model."""

from typing import Protocol

import torch

_LEAST_ACCEPTED = 1e-6
"""Acceptance below which only the cross-entropy teaches."""


class Labelled(Protocol):
    """Labels of R tokens by the target."""

    @property
    def label_ids(self) -> torch.Tensor:
        """[R, K] indices into the draft vocabulary."""

    @property
    def label_probabilities(self) -> torch.Tensor:
        """[R, K] renormalised over these tokens."""


def distillation_loss(logits: torch.Tensor, batch: Labelled) -> torch.Tensor:
    """Return the mean of cross-entropy minus log acceptance, of logits [R, draft vocabulary] over the rows of a batch.

    The cross-entropy of Q under P measures all of P. Minus log sum(min(P, Q)) measures the accepted part of Q
    (an LK loss, arXiv 2602.23881): a model too small for all of P is to spend itself on that. Where the
    draft vocabulary has nothing of P there is nothing to learn.
    """
    p = batch.label_probabilities
    log_q = logits.gather(-1, batch.label_ids) - logits.logsumexp(-1, keepdim=True)
    accepted = torch.minimum(p, log_q.exp()).sum(-1)
    cross_entropy = -(p * log_q).sum(-1)
    return (cross_entropy - (p.sum(-1) > 0) * accepted.clamp_min(_LEAST_ACCEPTED).log()).mean()
