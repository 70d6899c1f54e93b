"""Draft with DFlash and DSpark: one pass predicts a block.

The pass reads the target's hidden states. DFlash's guesses do not depend on earlier tokens of the block, so trees grow
as with heads (`heads.py`). DSpark adds a bias by the previous token (a Markov head), and trees grow level by level.
The confidence head is not used, since nodes are chosen for verification by path probability. Tensors:

    fc.weight                        [hidden, L * hidden], L: target layers read; followed by the norm hidden_norm
    layers.i.*, norm.weight          decoder layers with norms of queries and keys; the final norm
    lm_head.weight                   [draft vocabulary, hidden]; absent: the target's
    d2t, t2d                         as in EAGLE-3; absent if the draft vocabulary is the target's
    markov_head.*                    DSpark: bias of a position's logits by the previous token
    confidence_head.*                DSpark: how likely a position is accepted; does not change any logit

The embeddings are the target's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from specinfer.drafters.published.block_model import BlockModel, BlockPath, BlockTask, MarkovPasses
from specinfer.drafters.published.config import (
    PublishedConfig,
    Shapes,
    layer_shapes,
    read_published,
)
from specinfer.drafters.published.rows import PublishedDrafter, PublishedSource, in_llama_names, read_tensors
from specinfer.errors import IncompatibleError, naming
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.eagle_layer import EagleTask
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.levels import grow_levels
from specinfer.model.drafting.task import GrowthShape
from specinfer.tree import TokenTree, TreeLimits

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
class BlockSource(PublishedSource):
    """A draft that guesses a block of tokens at once."""

    block: int
    """Number of positions of a block: the root's and the masks'."""
    mask: int
    """Token id of the masks."""
    from_root: bool
    """True if the root's position also predicts a token."""
    windows_see_all: bool
    """True if windowed layers also see later positions of the block."""
    markov: str = ""
    """Kind of the Markov head; empty: none."""
    causal: bool = False
    """True if positions of the block never see later positions."""


class DFlashSource(BlockSource):
    algorithm = "dflash"


class DSparkSource(BlockSource):
    """A DSpark draft: DFlash, and a Markov head."""

    algorithm = "dspark"


B = TypeVar("B", bound=BlockSource)


def load_block_draft(kind: type[B], directory: Path, target_directory: Path) -> B:
    """Read a checkpoint."""
    spark = issubclass(kind, DSparkSource)
    with naming(directory):
        config = read_published(
            directory, target_directory, kind.algorithm, {**_FIELDS, **(_MARKOV_FIELDS if spark else {})}
        )
        rank = config.fields["markov_rank"] if spark else 0
        if not isinstance(rank, int) or rank < 0:
            raise IncompatibleError(f"markov_rank = {rank!r}: must be a whole number from 0")
        anchored, block = config.flag("sample_from_anchor"), config.count("block_size")
        if block == 1 and not anchored:
            raise IncompatibleError(
                f"block_size = {block}: must be at least 2, or no position predicts a token"
            )
        layers, hidden = config.read_layers("aux_hidden_state_layer_ids"), config.target.hidden_size
        wanted = block_shapes(config, len(layers)) | (_markov_shapes(config, rank) if spark else {})
        vocabulary, size = config.count("draft_vocab_size"), config.target.vocab_size
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
            layers,
            block,
            config.token("mask_token_id"),
            anchored,
            config.flag("sliding_window_non_causal"),
            config.fields["markov_head_type"] if rank else "",
        )


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


class BlockRunner:
    """Grow trees of DFlash or DSpark. Not thread-safe."""

    def __init__(self, model: BlockModel, num_blocks: int) -> None:
        self._model, self.cache = model, PagedKVCache(num_blocks, model.memory)

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        return 0

    @torch.inference_mode()
    def grow(
        self, tasks: Sequence[EagleTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        parts = [
            BlockTask(
                item.task.sequence, item.states, None if item.task.limits.empty else item.task.delta[-1]
            )
            for item in tasks
        ]
        hidden = iter(self._model.run(parts))
        blocks = [None if part.root is None else next(hidden) for part in parts]
        trees = self._grown(tasks, blocks, shape, token_ids)
        for item in tasks:
            self.cache.append(item.task.sequence, item.task.delta)
            self.cache.trim(item.task.sequence)
        return trees

    def _grown(
        self,
        tasks: Sequence[EagleTask],
        blocks: Sequence[torch.Tensor | None],
        shape: GrowthShape,
        token_ids: torch.Tensor,
    ) -> list[TokenTree]:
        first, depths, head = self._model.first, self._model.depths, self._model.markov
        paths: dict[int, BlockPath] = {}
        alone = []
        for item, block in zip(tasks, blocks, strict=True):
            limits = replace(item.task.limits, depth=min(item.task.limits.depth, depths))
            # nodes have no rows in the cache
            task = replace(
                item.task,
                sequence=KVSequence(),
                delta=item.task.delta[-1:],
                limits=limits,
                offset=item.task.context_length - 1,
            )
            alone.append(task)
            if block is not None:
                logits = self._model.logits(block[first : first + limits.depth])
                paths[id(task.sequence)] = BlockPath(block, logits, [])
        if head is not None:
            passes = MarkovPasses(head, first, self.cache, paths)
            return ReferenceGrowth(passes.forward, shape, token_ids).grow(alone)
        return [
            grow_levels(task, list(path.logits), shape, token_ids)
            if (path := paths.get(id(task.sequence)))
            else TokenTree.root_only(task.delta[-1])
            for task in alone
        ]


class DFlashDrafter(PublishedDrafter):
    """Draft a tree; level i has position i's most probable tokens."""

    kind, model, runner = DFlashSource, BlockModel, BlockRunner


class DSparkDrafter(PublishedDrafter):
    """Draft a tree level by level; logits depend on the previous token."""

    kind, model, runner = DSparkSource, BlockModel, BlockRunner
