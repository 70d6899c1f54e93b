"""Losses of drafters, against plain numpy, and what their gradients ask for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from speculator_svc.training.feature_students import UnrolledRows
from speculator_svc.training.losses import LossName, distillation_loss

VOCABULARY, WIDTH = 11, 4


def labelled(ids: object, probabilities: object) -> UnrolledRows:
    p = torch.tensor(probabilities, dtype=torch.float32)
    nothing = torch.zeros(len(p), dtype=torch.int64)
    return UnrolledRows(nothing, torch.tensor(ids), p, nothing)


def random_rows(seed: int, sharpness: float) -> tuple[torch.Tensor, UnrolledRows]:
    """Return logits and labels of six rows, of which one has a label of probability 0 and one none at all."""
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(VOCABULARY)[:WIDTH] for _ in range(6)])
    p = rng.dirichlet(np.ones(WIDTH), 6)
    p[1] = [0.5, 0.5, 0, 0]
    p[2] = 0
    logits = torch.tensor(sharpness * rng.normal(size=(6, VOCABULARY)), dtype=torch.float32)
    return logits, labelled(ids.tolist(), p.tolist())


def plain(
    name: LossName, logits: NDArray[np.float64], ids: NDArray[np.int64], p: NDArray[np.float64]
) -> float:
    """Compute a loss row by row, in whole distributions."""
    losses = []
    for row, chosen, probabilities in zip(logits, ids, p, strict=True):
        q = np.exp(row - row.max())
        q /= q.sum()
        target = np.zeros(VOCABULARY)
        target[chosen] = probabilities
        if not target.any():
            losses.append(0.0)
            continue
        known = target > 0
        acceptance = np.minimum(target, q).sum()
        if name is LossName.LK_LOG:
            losses.append(-(target * np.log(q)).sum() - np.log(max(acceptance, 1e-6)))
        else:
            divergence = (target[known] * np.log(target[known] / q[known])).sum()
            variation = 0.5 * np.abs(target - q).sum()
            share = np.exp(-3 * acceptance)
            losses.append(share * divergence + (1 - share) * variation)
    return float(np.mean(losses))


@pytest.mark.parametrize("name", LossName)
@given(st.integers(0, 10_000), st.floats(0.1, 6))
def test_losses_are_what_plain_numpy_computes(name: LossName, seed: int, sharpness: float) -> None:
    logits, batch = random_rows(seed, sharpness)
    p = batch.label_probabilities.double().numpy()
    expected = plain(name, logits.double().numpy(), batch.label_ids.numpy(), p)
    assert distillation_loss(name, logits, batch).item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


@given(st.integers(0, 10_000))
def test_lambda_of_the_hybrid_has_no_gradient(seed: int) -> None:
    """The gradient is that of KL and TV with lambda held: derived by hand, Q - P and that of the acceptance."""
    logits, batch = random_rows(seed, 1.0)
    logits.requires_grad_()
    distillation_loss(LossName.LK_HYBRID, logits, batch).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    q = logits.detach().softmax(-1)
    p = torch.zeros_like(q).scatter(1, batch.label_ids, batch.label_probabilities)
    taught = p.sum(-1, keepdim=True)
    share = (-3 * torch.minimum(p, q).sum(-1, keepdim=True)).exp()
    below = q * (q < p)  # where more of Q is accepted
    raised = below - q * below.sum(-1, keepdim=True)
    expected = taught * (share * (q - p) - (1 - share) * raised) / len(q)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", LossName)
def test_nothing_is_learnt_where_the_drafter_knows_none_of_the_tokens(name: LossName) -> None:
    logits = torch.zeros(2, VOCABULARY, requires_grad=True)
    batch = labelled([[0, 1], [2, 3]], [[0.5, 0.5], [0, 0]])
    distillation_loss(name, logits, batch).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[0].any()
    assert not logits.grad[1].any()


@pytest.mark.parametrize("name", LossName)
def test_a_draft_that_is_too_small_for_everything_prefers_what_is_accepted(name: LossName) -> None:
    """Where P = (0.6, 0.3, 0.1), of two drafts that KL finds alike the one of which more is accepted is better."""
    batch = labelled([[0, 1, 2]], [[0.6, 0.3, 0.1]])
    spreads, covers = torch.tensor([[0.4, 0.3, 0.3]]).log(), torch.tensor([[0.645, 0.33, 0.025]]).log()
    p = batch.label_probabilities

    def divergence(logits: torch.Tensor) -> float:
        return float((p * (p.log() - logits)).sum())

    assert divergence(spreads) < divergence(covers) + 0.09
    assert distillation_loss(name, covers, batch) < distillation_loss(name, spreads, batch)
    exact = p.log()
    assert distillation_loss(name, exact, batch) < distillation_loss(name, covers, batch)
