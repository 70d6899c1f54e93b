"""Read DFlash and DSpark drafts: one pass over the target's hidden states predicts a block.

The confidence head is not used, since nodes are chosen for verification by path probability. Tensors:

    fc.weight                        [hidden, L * hidden], L: target layers read; followed by the norm hidden_norm
    layers.i.*, norm.weight          decoder layers with norms of queries and keys; the final norm
    lm_head.weight                   [draft vocabulary, hidden]; absent: the target's
    d2t, t2d                         as in EAGLE-3; absent if the draft vocabulary is the target's
    markov_head.*                    DSpark: bias of a position's logits by the previous token
    confidence_head.*                DSpark: how likely a position is accepted; does not change any logit

The embeddings are the target's.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from specinfer.drafters.published.config import PublishedConfig, Shapes, layer_shapes, read_published
from specinfer.drafters.published.tensors import HEAD, OWN_EMBEDDING, PublishedSource, read_draft
from specinfer.errors import IncompatibleError, naming

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


class DFlashSource(PublishedSource):
    algorithm = "dflash"


class DSparkSource(PublishedSource):
    """A DSpark draft: DFlash, and a Markov head."""

    algorithm = "dspark"


B = TypeVar("B", DFlashSource, DSparkSource)


def load_block_draft(kind: type[B], directory: Path, target_directory: Path) -> B:
    """Read a checkpoint."""
    spark = kind is DSparkSource
    with naming(directory):
        config = read_published(
            directory, target_directory, kind.algorithm, {**_FIELDS, **(_MARKOV_FIELDS if spark else {})}
        )
        rank = config.fields["markov_rank"] if spark else 0
        if not isinstance(rank, int) or rank < 0:
            raise IncompatibleError(f"markov_rank = {rank!r}: must be a whole number from 0")
        anchored, sees_all = config.flag("sample_from_anchor"), config.flag("sliding_window_non_causal")
        layers, hidden = config.read_layers("aux_hidden_state_layer_ids"), config.target.hidden_size
        wanted = block_shapes(config, len(layers)) | (_markov_shapes(config, rank) if spark else {})
        vocabulary, size = config.draft_vocabulary, config.target.vocab_size
        head: Shapes = {HEAD: (vocabulary, hidden)}
        unused: Shapes = {OWN_EMBEDDING: (size, hidden)}  # the library takes the target's own
        if vocabulary == size:
            unused |= head
        else:
            wanted |= head
        return read_block(
            kind,
            config,
            wanted,
            unused,
            layers=layers,
            mask=config.token("mask_token_id"),
            from_root=anchored,
            both_ways=tuple(window is None or sees_all for window in config.layers.windows),
            markov=config.fields["markov_head_type"] if rank else "",
        )


def read_block(kind: type[B], config: PublishedConfig, wanted: Shapes, unused: Shapes, **reading: Any) -> B:
    """Read the tensors of a draft with blocks (see `read_draft`); `unused` tensors are dropped."""
    block = config.count("block_size")
    if block == 1 and not reading.get("from_root"):
        raise IncompatibleError(f"block_size = {block}: must be at least 2, or no position predicts a token")
    shape = replace(config.layers.config, qk_norm=True)
    config = replace(config, layers=replace(config.layers, config=shape))
    return read_draft(kind, config, wanted, unused, unused=True, ahead=block, **reading)


load_dspark = partial(load_block_draft, DSparkSource)


def block_shapes(config: PublishedConfig, read: int) -> Shapes:
    """Return the tensors' names and shapes; `read`: number of target layers read."""
    hidden = config.target.hidden_size
    shapes: Shapes = {"fc.weight": (hidden, read * hidden)}
    shapes |= {f"{norm}.weight": (hidden,) for norm in ("hidden_norm", "norm")}
    for index in range(config.layers.config.layers):
        shapes |= layer_shapes(f"layers.{index}.", config.layers, normed_heads=True)
    return shapes


def _markov_shapes(config: PublishedConfig, rank: int) -> Shapes:
    hidden, kind = config.target.hidden_size, config.fields["markov_head_type"]
    if kind not in MARKOV_KINDS:
        raise IncompatibleError(f"markov_head_type = {kind!r}: must be one of {', '.join(MARKOV_KINDS)}")
    shapes: Shapes = {}
    if rank:
        shapes["markov_head.markov_w1.weight"] = (config.target.vocab_size, rank)
        shapes["markov_head.markov_w2.weight"] = (config.count("draft_vocab_size"), rank)
        sizes = {
            "gated": ("gate_proj", rank, hidden + rank),
            "rnn": ("joint_proj", 3 * rank, 2 * rank + hidden),
        }
        if kind in sizes:
            name, out, read = sizes[kind]
            shapes |= {f"markov_head.{name}.weight": (out, read), f"markov_head.{name}.bias": (out,)}
    if config.flag("enable_confidence_head"):
        read = hidden + (rank if config.flag("confidence_head_with_markov") else 0)
        shapes |= {"confidence_head.proj.weight": (1, read), "confidence_head.proj.bias": (1,)}
    return shapes
