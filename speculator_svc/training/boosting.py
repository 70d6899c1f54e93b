"""Collective boost-tuning (paper, section 3): the next SSM learns what the ones before it miss.

The paper drops whole prompts on which an SSM generates what the target generates. A prompt of a hundred
tokens is hardly ever predicted whole, so tokens are dropped here: those that an earlier SSM's first guess
gets right. Contexts stay complete; only the loss leaves the dropped tokens out.
"""

from collections.abc import Sequence

import numpy as np
import torch

from speculator_svc.training.batches import Examples
from speculator_svc.training.student import Student
from speculator_svc.training.success import ranks


def missed_by_all(pool: Sequence[Student], examples: Examples, vocabulary: torch.Tensor) -> Examples:
    """The examples with only those tokens counted that no SSM of the pool guesses first."""
    places = [ranks(student, examples, vocabulary, 1) for student in pool]
    counted = [np.minimum.reduce(found) > 0 for found in zip(*places, strict=True)]
    return Examples(examples.corpus, examples.labels, counted)


def pool_report(
    pool: Sequence[Student], examples: Examples, vocabulary: torch.Tensor
) -> list[dict[str, float]]:
    """Per added SSM: its own first-guess success, the pool's, and the first SSM's with as many guesses."""
    most = len(pool)
    places = np.array([np.concatenate(ranks(student, examples, vocabulary, most)) for student in pool])
    return [
        {
            "top1": round(float((places[i] == 0).mean()), 4),
            "union": round(float((places[: i + 1] == 0).any(0).mean()), 4),
            "first_ssm_with_as_many_guesses": round(float((places[0] <= i).mean()), 4),
        }
        for i in range(most)
    ]
