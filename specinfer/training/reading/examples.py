"""Training data of kept texts: hidden states from disk, labels from the target's own head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from specinfer.drafters.heads_layers import output_head
from specinfer.model.torch.parts import Parts, soft_capped
from specinfer.model.weights.config import ModelConfig
from specinfer.training.corpus import Continuation, Labels
from specinfer.training.eagle_student import UnrolledExamples
from specinfer.training.feature_students import UnrolledBatch
from specinfer.training.generate import LABEL_WIDTH, most_probable
from specinfer.training.reading.kept import KeptText


class TargetHead:
    """The target's final norm, and the rows of its head for a draft vocabulary."""

    def __init__(
        self, config: ModelConfig, target: Mapping[str, torch.Tensor], token_ids: torch.Tensor, device: str
    ) -> None:
        """Read the rows of `token_ids` [draft vocabulary]."""
        self._norm, self._device = Parts(config, target, torch.float32, device).norm("model.norm"), device
        self._cap = config.logit_cap
        self._rows = output_head(config, target, token_ids).float().to(device)

    @torch.inference_mode()
    def labels(self, states: torch.Tensor) -> Labels:
        """Return the draft tokens after hidden states [n, hidden] of the last layer."""
        logits = soft_capped(self._norm(states.to(self._device)) @ self._rows.T, self._cap)
        probabilities, ids = most_probable(logits, min(LABEL_WIDTH, logits.shape[-1]))
        return Labels(ids.numpy(), probabilities.numpy())


@dataclass(slots=True)
class KeptExamples:
    """Kept texts as training data of several steps."""

    texts: Sequence[KeptText]
    head: TargetHead
    steps: int
    """Number of steps that a batch unrolls; it may change between batches."""
    places: Sequence[int]
    """Places of the layers to read in the states of a text."""

    @property
    def corpus(self) -> Sequence[Continuation]:
        return [text.item for text in self.texts]

    def batch(self, indices: Sequence[int]) -> UnrolledBatch:
        """Return a batch of these texts, padded on the right."""
        items, states, labels = [], [], []
        for text in [self.texts[i] for i in indices]:
            numbers = torch.from_numpy(text.states())
            items.append(text.item)
            labels.append(self.head.labels(numbers[len(text.item.prompt) - 1 :, -1]))
            states.append(numbers[:, list(self.places)].to(torch.bfloat16).view(torch.int16).numpy())
        return UnrolledExamples(items, states, labels, self.steps).batch(range(len(items)))
