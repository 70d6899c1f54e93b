"""The seam by which ranks divide a decoder among them (`specinfer.model.parallel`)."""

from typing import Protocol

from specinfer.model.torch.linear import Linear


class Surgery(Protocol):
    """What ranks that share a model put around the parts of a decoder whose weights they have divided."""

    def embedding(self, lookup: Linear) -> Linear:
        """Around the lookup of token ids [T] in this rank's rows of the embeddings."""

    def output(self, linear: Linear) -> Linear:
        """Around a layer whose inputs are divided: each rank has a summand of its output."""

    def head(self, linear: Linear) -> Linear:
        """Around the head: each rank has the logits of its part of the vocabulary."""
