"""How often a trained draft model proposes what the target really said."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from speculator_svc.training.batches import Examples, batches
from speculator_svc.training.loss import ssm_logits
from speculator_svc.training.student import Student


@dataclass(frozen=True, slots=True)
class Success:
    """How often the true next token is among a draft's most probable ones."""

    top: dict[int, float]
    """k -> share of tokens within the top k."""

    def to_json(self) -> dict[str, float]:
        """For the record of a training."""
        return {f"top{k}": round(share, 4) for k, share in self.top.items()}

    def __str__(self) -> str:
        return " / ".join(f"{100 * share:.1f}" for share in self.top.values()) + f" % (top {list(self.top)})"


@torch.inference_mode()
def ranks(
    student: Student, examples: Examples, vocabulary: torch.Tensor, most: int = 5
) -> list[NDArray[np.int64]]:
    """Per continuation: the place of each output token among the draft's `most` best, or `most`.

    Tokens outside the draft vocabulary have no place.
    """
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(examples.corpus)
    whole = Examples(examples.corpus, examples.labels)
    for indices, batch in batches(whole, 4096, np.random.default_rng(0)):
        logits = ssm_logits(student, batch.to(student.device))
        best = vocabulary[logits.topk(most, dim=-1).indices.cpu()]
        hit = best == batch.next_tokens[:, None]
        place = torch.where(hit.any(-1), hit.int().argmax(-1), most).numpy()
        cuts = np.cumsum([len(examples.corpus[i].output) for i in indices])[:-1]
        for index, part in zip(indices, np.split(place, cuts), strict=True):
            found[index] = part
    return found


def evaluate(student: Student, examples: Examples, vocabulary: torch.Tensor, most: int = 5) -> Success:
    """Success on the tokens the target really went on with."""
    place = np.concatenate(ranks(student, examples, vocabulary, most))
    return Success({k: float((place < k).mean()) for k in range(1, most + 1)})
