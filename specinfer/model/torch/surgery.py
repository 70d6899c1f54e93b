"""The seam by which ranks divide a decoder among them (`specinfer.model.parallel`)."""

from typing import Protocol

from specinfer.model.torch.linear import Linear


class Surgery(Protocol):
    """Wrappers that ranks put around the parts of a decoder whose weights they have divided."""

    def embedding(self, lookup: Linear) -> Linear:
        """Wrap the lookup of token ids [T] in this rank's rows of the embeddings."""

    def output(self, linear: Linear) -> Linear:
        """Wrap a layer whose inputs are divided: each rank has a summand of its output."""

    def head(self, linear: Linear) -> Linear:
        """Wrap the head: each rank has the logits of its part of the vocabulary."""
