"""DFlash and DSpark drafts: a block of tokens that reads the target's hidden states as keys and values.

    fc.weight                        [hidden, layers read * hidden], behind it the norm hidden_norm
    layers.i.*, norm.weight          decoder layers with norms of queries and keys; the final norm
    lm_head.weight                   [draft vocabulary, hidden]; where it is the whole, the target's own is taken
    d2t, t2d                         as of EAGLE-3; absent if the draft vocabulary is the target's
    markov_head.*                    DSpark: bias of a position's logits by the token before it
    confidence_head.*                DSpark: how likely a position is accepted; does not change any logit

The embeddings are the target's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.weights.published.config import PublishedConfig, naming, read_published
from specinfer.model.weights.published.layers import DraftLayers, Shapes, layer_shapes
from specinfer.model.weights.published.tensors import in_llama_names, read_tensors

_FIELDS = {
    "draft_vocab_size": None,
    "block_size": 8,
    "target_hidden_size": None,
    "aux_hidden_state_layer_ids": None,
    "mask_token_id": None,
    "sliding_window_non_causal": False,
    "sample_from_anchor": False,
}
_MARKOV_FIELDS = {
    "sample_from_anchor": True,
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True)
class BlockSource:
    """A draft that guesses a block of tokens at once."""

    algorithm: ClassVar[str]
    tensors: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token."""
    draft_layers: DraftLayers
    layers: tuple[int, ...]
    """Numbers of the target's layers after which hidden states are read, in the order of `fc`."""
    block: int
    """Positions of a block: the root, then masks."""
    mask: int
    """Token of a mask."""
    from_root: bool
    """True if the root's own position guesses the token behind it, so that no position is without a guess."""
    windows_see_all: bool
    """True if positions of a block see later ones of it in layers with a window, too."""
    markov: str = ""
    """Kind of the Markov head, if there is one."""


class DFlashSource(BlockSource):
    """A DFlash draft."""

    algorithm = "dflash"


class DSparkSource(BlockSource):
    """A DSpark draft: DFlash, and a Markov head."""

    algorithm = "dspark"


B = TypeVar("B", bound=BlockSource)


def load_block_draft(kind: type[B], directory: Path, target_directory: Path) -> B:
    """Read a checkpoint.

    Raises:
        IncompatibleError: naming what is not understood, or does not fit the target.
    """
    spark = issubclass(kind, DSparkSource)
    with naming(directory):
        config = read_published(
            directory, target_directory, kind.algorithm, {**_FIELDS, **(_MARKOV_FIELDS if spark else {})}
        )
        rank = config.fields["markov_rank"] if spark else 0
        if not isinstance(rank, int) or rank < 0:
            raise IncompatibleError(f"markov_rank = {rank!r}: must be a whole number")
        anchored, block = config.flag("sample_from_anchor"), config.count("block_size")
        if block == 1 and not anchored:
            raise IncompatibleError(f"block_size = {block}: has no position that guesses")
        wanted = _shapes(config) | (_markov_shapes(config, rank) if spark else {})
        vocabulary, size = config.count("draft_vocab_size"), config.target.vocab_size
        hidden = config.target.hidden_size
        whole: Shapes = {"embed_tokens.weight": (size, hidden)}  # the library takes the target's own
        head: Shapes = {"lm_head.weight": (vocabulary, hidden)}
        if vocabulary == size:
            whole |= head
        else:
            wanted |= head
        tensors, token_ids = read_tensors(directory, wanted, whole, vocabulary, size)
        return kind(
            in_llama_names({name: tensors[name] for name in wanted}),
            token_ids,
            config.layers,
            config.read_layers("aux_hidden_state_layer_ids"),
            block,
            config.token("mask_token_id"),
            anchored,
            config.flag("sliding_window_non_causal"),
            config.fields["markov_head_type"] if rank else "",
        )


def _shapes(config: PublishedConfig) -> Shapes:
    hidden = config.target.hidden_size
    read = len(config.read_layers("aux_hidden_state_layer_ids"))
    found: Shapes = {"fc.weight": (hidden, read * hidden)}
    found |= {f"{norm}.weight": (hidden,) for norm in ("hidden_norm", "norm")}
    for index in range(config.layers.config.layers):
        found |= layer_shapes(f"layers.{index}.", config.layers, normed_heads=True)
    return found


def _markov_shapes(config: PublishedConfig, rank: int) -> Shapes:
    hidden, kind = config.target.hidden_size, config.fields["markov_head_type"]
    if kind not in MARKOV_KINDS:
        raise IncompatibleError(f"markov_head_type = {kind!r}: must be one of {', '.join(MARKOV_KINDS)}")
    found: Shapes = {}
    if rank:
        found["markov_head.markov_w1.weight"] = (config.target.vocab_size, rank)
        found["markov_head.markov_w2.weight"] = (config.count("draft_vocab_size"), rank)
        sizes = {
            "gated": ("gate_proj", rank, hidden + rank),
            "rnn": ("joint_proj", 3 * rank, 2 * rank + hidden),
        }
        if kind in sizes:
            name, out, read = sizes[kind]
            found |= {f"markov_head.{name}.weight": (out, read), f"markov_head.{name}.bias": (out,)}
    if config.flag("enable_confidence_head"):
        read = hidden + (rank if config.flag("confidence_head_with_markov") else 0)
        found |= {"confidence_head.proj.weight": (1, read), "confidence_head.proj.bias": (1,)}
    return found
