"""The loss of drafters, against plain numpy, and its gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specinfer.training.distil import distillation_loss
from specinfer.training.feature_students import UnrolledRows

VOCABULARY, WIDTH = 11, 4


def labelled(ids: object, probabilities: object) -> UnrolledRows:
    p = torch.tensor(probabilities, dtype=torch.float32)
    nothing = torch.zeros(len(p), dtype=torch.int64)
    return UnrolledRows(nothing, torch.tensor(ids), p, nothing)


def random_rows(seed: int, sharpness: float) -> tuple[torch.Tensor, UnrolledRows]:
    """Return logits and labels of six rows; one row has labels of probability 0, and one has no label."""
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(VOCABULARY)[:WIDTH] for _ in range(6)])
    p = rng.dirichlet(np.ones(WIDTH), 6)
    p[1] = [0.5, 0.5, 0, 0]
    p[2] = 0
    logits = torch.tensor(sharpness * rng.normal(size=(6, VOCABULARY)), dtype=torch.float32)
    return logits, labelled(ids.tolist(), p.tolist())


def plain(logits: NDArray[np.float64], ids: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    """Compute the loss row by row, over whole distributions."""
    losses = []
    for row, chosen, probabilities in zip(logits, ids, p, strict=True):
        q = np.exp(row - row.max())
        q /= q.sum()
        target = np.zeros(VOCABULARY)
        target[chosen] = probabilities
        if not target.any():
            losses.append(0.0)
            continue
        acceptance = np.minimum(target, q).sum()
        losses.append(-(target * np.log(q)).sum() - np.log(max(acceptance, 1e-6)))
    return float(np.mean(losses))


@given(st.integers(0, 10_000), st.floats(0.1, 6))
def test_the_loss_equals_plain_numpy(seed: int, sharpness: float) -> None:
    logits, batch = random_rows(seed, sharpness)
    p = batch.label_probabilities.double().numpy()
    expected = plain(logits.double().numpy(), batch.label_ids.numpy(), p)
    assert distillation_loss(logits, batch).item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_rows_without_a_known_token_have_no_gradient() -> None:
    logits = torch.zeros(2, VOCABULARY, requires_grad=True)
    batch = labelled([[0, 1], [2, 3]], [[0.5, 0.5], [0, 0]])
    distillation_loss(logits, batch).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[0].any()
    assert not logits.grad[1].any()


def test_a_draft_with_more_accepted_tokens_has_the_lower_loss() -> None:
    """P = (0.6, 0.3, 0.1): of two drafts with nearly equal KL, the one with more accepted tokens has the lower loss."""
    batch = labelled([[0, 1, 2]], [[0.6, 0.3, 0.1]])
    spreads, covers = torch.tensor([[0.4, 0.3, 0.3]]).log(), torch.tensor([[0.645, 0.33, 0.025]]).log()
    p = batch.label_probabilities

    def divergence(logits: torch.Tensor) -> float:
        return float((p * (p.log() - logits)).sum())

    assert divergence(spreads) < divergence(covers) + 0.09
    assert distillation_loss(covers, batch) < distillation_loss(spreads, batch)
    exact = p.log()
    assert distillation_loss(exact, batch) < distillation_loss(covers, batch)
