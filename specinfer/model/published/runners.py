"""Published drafts in use: rows and trees for a batch of requests. None is thread-safe."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from specinfer.model.batch import Segment, flatten
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence, blocks_for
from specinfer.model.drafting.eagle import EagleTask
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.levels import grow_levels
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.eagle import EagleRunner
from specinfer.model.options import DTYPES, RunnerOptions
from specinfer.model.published.dflash import BlockModel, BlockTask
from specinfer.model.published.markov import BlockPath, MarkovPasses
from specinfer.model.published.memory import Borrowed
from specinfer.model.published.mtp import MtpModel
from specinfer.model.published.peagle import PEagleModel
from specinfer.model.weights.drafts import PublishedDraft
from specinfer.model.weights.published.dflash import BlockSource
from specinfer.model.weights.published.peagle import PEagleSource
from specinfer.tree import TokenTree, TreeLimits


class BlockRunner:
    """Grows trees of DFlash or DSpark."""

    def __init__(self, model: BlockModel, num_blocks: int) -> None:
        self._model, self.cache = model, PagedKVCache(num_blocks, model.memory)

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        """Return the rows that growing one tree adds to the cache for a while: none."""
        return 0

    @torch.inference_mode()
    def grow(
        self, tasks: Sequence[EagleTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Read every task's new rows and grow its tree; return one per task, in order."""
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
            # its nodes are no rows of the cache
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


class PEagleRunner:
    """Grows trees of P-EAGLE."""

    def __init__(self, model: PEagleModel, num_blocks: int) -> None:
        self._model, self.cache = model, PagedKVCache(num_blocks, model.memory)

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        """Return the rows that growing one tree adds to the cache for a while: its masks."""
        return max(min(limits.depth, self._model.depths) - 1, 0) if limits.nodes else 0

    @torch.inference_mode()
    def grow(
        self, tasks: Sequence[EagleTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Read every task's new rows and grow its tree; return one per task, in order.

        No mask stays in the cache. Space for `rows_ahead` must be reserved.
        """
        segments, hidden = [], []
        for item in tasks:
            masks = self.rows_ahead(shape, item.task.limits)
            segments.append(
                Segment(
                    item.task.sequence,
                    item.task.delta,
                    [self._model.mask] * masks,
                    range(-1, masks - 1),
                    want_last=not item.task.limits.empty,
                )
            )
            hidden += [self._model.hidden_of(item.states), self._model.mask_hidden.expand(masks, -1)]
        batch = flatten(segments)
        outs = self._model.run(batch, torch.cat(hidden))
        logits = self._model.logits(outs[batch.logit_rows])
        trees = [
            grow_levels(item.task, list(logits[start:stop]), shape, token_ids)
            for item, (start, stop) in zip(tasks, batch.logit_spans, strict=True)
        ]
        for item in tasks:
            self.cache.append(item.task.sequence, item.task.delta)
            self.cache.trim(item.task.sequence)
        return trees


def build_runner(
    source: PublishedDraft, borrowed: Borrowed, options: RunnerOptions
) -> BlockRunner | PEagleRunner | EagleRunner:
    """Combine a draft's layers and their cache. Trees of MTP grow as those of EAGLE-3."""
    blocks = blocks_for(options.kv_tokens)
    memory = DTYPES[options.dtype], options.device, blocks
    if isinstance(source, BlockSource):
        return BlockRunner(BlockModel(source, borrowed, *memory), blocks)
    if isinstance(source, PEagleSource):
        return PEagleRunner(PEagleModel(source, borrowed, *memory), blocks)
    return EagleRunner(MtpModel(source, borrowed, *memory), blocks)
