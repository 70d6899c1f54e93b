"""Candidates behind nodes, and the probability that the target chooses them, by which points are proposed."""

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.drafting.task import NOISY_RIVALS, GrowthTask
from specinfer.model.sampling.distributions import Float32, Float64, probabilities
from specinfer.model.sampling.noise import perturbed
from specinfer.sampling import noise_key


def candidates(
    task: GrowthTask, rows: torch.Tensor, token_ids: torch.Tensor, width: int, position: int
) -> tuple[Float32, list[list[int]]]:
    """Return scores and target tokens [F, width] of the candidates behind each of F nodes, best first.

    Args:
        rows: logits [F, draft vocabulary].
        token_ids: [draft vocabulary] target token of each draft token.
        position: place in the context of what follows, which keys the noise.
    """
    if task.sampling.greedy:
        top = (rows / task.score_temperature).softmax(-1).topk(width, dim=-1)
        return top.values.cpu().numpy(), token_ids[top.indices.cpu()].tolist()
    key, vocabulary = noise_key(task.sampling.seed, position), token_ids.numpy()
    noisy = np.stack([perturbed(probabilities(row, task.sampling), vocabulary, key) for row in rows])
    best = _largest(noisy, max(width, NOISY_RIVALS))
    lead = np.take_along_axis(noisy, best, -1)
    weights = np.exp((lead - lead[:, :1]) / task.score_temperature)
    scores = weights / weights[:, :NOISY_RIVALS].sum(-1, keepdims=True)
    return scores[:, :width].astype(np.float32), vocabulary[best[:, :width]].tolist()


def _largest(rows: Float64, most: int) -> NDArray[np.intp]:
    """Return [F, most] places of the largest numbers of each row, the largest first; sort only these."""
    most = min(most, rows.shape[-1])
    places = np.argpartition(-rows, most - 1, axis=-1)[:, :most]
    order = np.argsort(-np.take_along_axis(rows, places, -1), axis=-1)
    return np.take_along_axis(places, order, -1)
