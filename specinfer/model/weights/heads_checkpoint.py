"""Checkpoints of speculators that are heads over the target's last hidden state, k of them.

Medusa, under the names that its authors publish, i = 0 ... k - 1:

    i.0.linear.weight, i.0.linear.bias    [hidden, hidden]             of the residual block
    i.1.weight                            [draft vocabulary, hidden]   its output head

Blockwise parallel decoding, whose heads share the target's output head, which is not stored:

    in_proj.weight, in_proj.bias          [k * hidden, hidden]         one feed-forward layer for all heads
    out_proj.weight, out_proj.bias        [k * hidden, k * hidden]     rows of head after head

Either may have a Markov head, a low-rank bias by the token before:

    markov.in.weight                      [rank, hidden]               reads the target's embedding of that token
    markov.out.weight                     [draft vocabulary, rank]

Both have `d2t` and `t2d` as EAGLE has them; without these a draft token is its target token. `config.json`
says `speculators_model_type: medusa` or `blockwise`, and `num_heads`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.weights.config import load_config
from specinfer.model.weights.draft_checkpoint import checked_config, own_tensors, save_checkpoint

_COUNT = "num_heads"
MARKOV_IN, MARKOV_OUT = "markov.in", "markov.out"


@dataclass(frozen=True, slots=True)
class HeadsSource:
    """Heads of either kind."""

    algorithm: ClassVar[str]
    architecture: ClassVar[str]
    tensors: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token, ascending."""
    count: int
    """Number of heads."""

    @property
    def markov(self) -> bool:
        """Return whether they have a Markov head."""
        return f"{MARKOV_OUT}.weight" in self.tensors


class MedusaSource(HeadsSource):
    """Heads of Medusa: each has a residual block and an output head."""

    algorithm = "medusa"
    architecture = "MedusaSpeculator"


class BlockwiseSource(HeadsSource):
    """Heads of blockwise parallel decoding: one feed-forward layer, the target's output head."""

    algorithm = "blockwise"
    architecture = "BlockwiseSpeculator"


H = TypeVar("H", bound=HeadsSource)


def save_heads(
    directory: Path, heads: HeadsSource, target_directory: Path, target_name: str, trained: Mapping[str, Any]
) -> None:
    """Write a checkpoint. `trained` records data, command, seed, time and figures."""
    fields = {"architectures": [heads.architecture], _COUNT: heads.count, "trained": dict(trained)}
    save_checkpoint(
        directory,
        heads.algorithm,
        heads.tensors,
        heads.token_ids,
        fields,
        target_directory,
        target_name,
        {"num_hidden_layers": 0},
    )


def load_heads(kind: type[H], directory: Path, target_directory: Path) -> H:
    """Read a checkpoint.

    Raises:
        IncompatibleError: if it is of another kind, was trained for another target or has no heads.
    """
    config = checked_config(directory, target_directory, kind.algorithm)
    tensors, token_ids = own_tensors(directory)
    count = config.get(_COUNT)
    if not isinstance(count, int) or count < 1:
        raise IncompatibleError(f"{directory}: {_COUNT} = {count!r} must be a positive whole number")
    if token_ids is None:
        token_ids = torch.arange(load_config(target_directory).vocab_size)
    return kind(tensors, token_ids, count)
