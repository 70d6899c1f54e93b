"""What training minimises: how far a draft model's distributions are from the target's."""

from typing import Protocol

import torch

from speculator_svc.training.batches import TrainingBatch
from speculator_svc.training.device import bfloat16_is_fast
from speculator_svc.training.student import Student

_LEAST_ACCEPTED = 1e-6
"""Below it only the cross-entropy teaches."""


class Labelled(Protocol):
    """What the target says of R tokens."""

    @property
    def label_ids(self) -> torch.Tensor:
        """[R, K] indices into the draft vocabulary."""

    @property
    def label_probabilities(self) -> torch.Tensor:
        """[R, K] renormalised over these tokens."""


def distillation_loss(logits: torch.Tensor, batch: Labelled) -> torch.Tensor:
    """Mean of two terms: how far the draft Q is from the target's (renormalised) most probable tokens P.

    The cross-entropy of Q under P asks for all of P. Minus log sum(min(P, Q)) asks for what is accepted of Q
    (an LK loss, arXiv 2602.23881): a model too small for all of P is to spend itself on that. Where the
    draft vocabulary has nothing of P there is nothing to learn.
    """
    p = batch.label_probabilities
    log_q = logits.gather(-1, batch.label_ids) - logits.logsumexp(-1, keepdim=True)
    cross_entropy = -(p * log_q).sum(-1)
    accepted = torch.minimum(p, log_q.exp()).sum(-1).clamp_min(_LEAST_ACCEPTED)
    return (cross_entropy - (p.sum(-1) > 0) * accepted.log()).mean()


def ssm_loss(student: Student, batch: TrainingBatch) -> torch.Tensor:
    """Of one batch."""
    return distillation_loss(ssm_logits(student, batch), batch)


def ssm_logits(student: Student, batch: TrainingBatch) -> torch.Tensor:
    """[R, draft vocabulary] at the output positions of a batch."""
    with rough(student.device):
        logits: torch.Tensor = student(batch.token_ids, batch.rows)
    return logits


def rough(device: torch.device) -> torch.autocast:
    """bfloat16 where that is no slower."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bfloat16_is_fast(device))
