"""What readers of hidden states learn from: continuations with these, and labels several tokens ahead."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from speculator_svc.training.batches import batches
from speculator_svc.training.corpus import Continuation, Labels
from speculator_svc.training.feature_student import FeatureStudent, UnrolledBatch, UnrolledRows
from speculator_svc.training.loss import distillation_loss, rough
from speculator_svc.training.success import Success

STEP_WEIGHT = 0.8
"""Of each further step's loss, as in EAGLE-3: a token counts less the fewer drafts come to it."""


@dataclass(frozen=True, slots=True)
class UnrolledExamples:
    """Continuations, hidden states at their tokens and labels at their output tokens."""

    corpus: Sequence[Continuation]
    states: Sequence[NDArray[np.int16]]
    """Per continuation [tokens - 1, layers, hidden]."""
    labels: Sequence[Labels]
    """In the draft vocabulary."""
    steps: int

    def batch(self, indices: Sequence[int]) -> UnrolledBatch:
        """Some continuations, padded on the right."""
        items = [self.corpus[i] for i in indices]
        width = max(len(item.prompt) + len(item.output) - 2 for item in items)
        states = np.zeros((len(items), width, *self.states[indices[0]].shape[1:]), np.int16)
        token_ids = np.zeros((len(items), width), np.int64)
        for row, (index, item) in enumerate(zip(indices, items, strict=True)):
            known = len(item.prompt) + len(item.output) - 2
            states[row, :known] = self.states[index][:known]
            token_ids[row, :known] = (item.prompt + item.output)[1:-1]
        steps = tuple(self._rows(indices, width, step) for step in range(self.steps))
        return UnrolledBatch(
            torch.from_numpy(token_ids), torch.from_numpy(states).view(torch.bfloat16), steps
        )

    def _rows(self, indices: Sequence[int], width: int, step: int) -> UnrolledRows:
        """Row j predicts token j + 2 + step, which must be one of the output."""
        rows, ids, probabilities, following = [], [], [], []
        for row, index in enumerate(indices):
            item = self.corpus[index]
            prompt, output = len(item.prompt), len(item.output)
            first = max(0, 2 + step - prompt)
            own = np.arange(first, output)
            rows.append(own + prompt - 2 - step + row * width)
            ids.append(self.labels[index].ids[own])
            probabilities.append(self.labels[index].probabilities[own])
            following.append(np.array(item.output)[own])
        return UnrolledRows(
            torch.from_numpy(np.concatenate(rows)),
            torch.from_numpy(np.concatenate(ids).astype(np.int64)),
            torch.from_numpy(np.concatenate(probabilities).astype(np.float32)),
            torch.from_numpy(np.concatenate(following)),
        )


def unrolled_loss(student: FeatureStudent, batch: UnrolledBatch) -> torch.Tensor:
    """Mean over steps of the distillation loss, weighted by `STEP_WEIGHT` to the power of the step."""
    with rough(student.device):
        logits = student(batch)
    weights = [STEP_WEIGHT**step for step in range(len(logits))]
    losses = [
        weight * distillation_loss(rows.float(), told)
        for weight, rows, told in zip(weights, logits, batch.steps, strict=True)
    ]
    return torch.stack(losses).sum() / sum(weights)


@torch.inference_mode()
def evaluate_unrolled(
    student: FeatureStudent, examples: UnrolledExamples, vocabulary: torch.Tensor, most: int = 5
) -> list[Success]:
    """Per step the success on what the target went on with. Students that read the tokens before (EAGLE) are
    given the right ones."""
    hits: list[list[torch.Tensor]] = [[] for _ in range(examples.steps)]
    for _, batch in batches(examples, 4096, np.random.default_rng(0)):
        batch = batch.to(student.device)
        with rough(student.device):
            logits = student(batch)
        for step, (rows, told) in enumerate(zip(logits, batch.steps, strict=True)):
            best = vocabulary[rows.float().topk(most, dim=-1).indices.cpu()]
            hits[step].append(best == told.next_tokens[:, None].cpu())
    return [
        Success({k: float(torch.cat(step)[:, :k].any(-1).float().mean()) for k in range(1, most + 1)})
        for step in hits
    ]
