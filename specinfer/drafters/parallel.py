"""Draft with P-EAGLE, DFlash and DSpark: one pass predicts all depths.

    P-EAGLE   masks follow the context's rows; mask i predicts the token i places after the root's successor
    DFlash    a block, the root and masks, sees the context's rows; position k predicts the token k places after the
              root, or k + 1 places if the root's position also predicts
    DSpark    DFlash, and a Markov head: logits depend on the previous token, too

Predictions of P-EAGLE and DFlash do not depend on each other, so trees grow as with heads (`heads.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from specinfer.drafters.feature_rows import FeatureRowsDrafter, RowRunner
from specinfer.drafters.published.block import DFlashSource, DSparkSource
from specinfer.drafters.published.peagle import PEagleSource
from specinfer.model.batch import Segment, flatten
from specinfer.model.drafting.levels import grow_edges, grow_levels
from specinfer.model.drafting.stack import MarkovHead, RowsTask
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.tree import TokenTree, TreeLimits


class MasksRunner(RowRunner):
    """Grow trees of P-EAGLE."""

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        return max(min(limits.depth, self._model.plan.ahead) - 1, 0) if limits.nodes else 0

    @torch.inference_mode()
    def grow(self, tasks: Sequence[RowsTask], shape: GrowthShape, token_ids: torch.Tensor) -> list[TokenTree]:
        model, segments, hidden = self._model, [], []
        for item in tasks:
            masks, wanted = self.rows_ahead(shape, item.task.limits), not item.task.limits.empty
            nodes, parents = [model.plan.mask] * masks, range(-1, masks - 1)
            segments.append(Segment(item.task.sequence, item.task.delta, nodes, parents, wanted))
            hidden += [model.hidden_of(item.states), model.hidden_of_masks(masks)]
        batch = flatten(segments)
        outs = model.run(batch, torch.cat(hidden))
        logits = model.logits(outs[batch.logit_rows])
        for item in tasks:
            self.cache.append(item.task.sequence, item.task.delta)
            self.cache.trim(item.task.sequence)
        return [
            grow_levels(_of_root(item.task), list(logits[start:stop]), shape, token_ids)
            for item, (start, stop) in zip(tasks, batch.logit_spans, strict=True)
        ]


class BlockRunner(RowRunner):
    """Grow trees of DFlash or DSpark."""

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        return self._model.plan.ahead if limits.nodes else 0

    @torch.inference_mode()
    def grow(self, tasks: Sequence[RowsTask], shape: GrowthShape, token_ids: torch.Tensor) -> list[TokenTree]:
        rows = flatten([Segment(item.task.sequence, item.task.delta) for item in tasks])
        self._model.store(rows, self._model.hidden_of(torch.cat([item.states for item in tasks])))
        for item in tasks:
            self.cache.append(item.task.sequence, item.task.delta)
        roots = [_of_root(item.task) for item in tasks]
        trees = iter(self._grown([task for task in roots if not task.limits.empty], shape, token_ids))
        for task in roots:
            self.cache.trim(task.sequence)
        return [TokenTree.root_only(task.delta[-1]) if task.limits.empty else next(trees) for task in roots]

    def _grown(
        self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Return the trees of tasks whose rows are stored."""
        if not tasks:
            return []
        model, plan, parents = self._model, self._model.plan, range(-1, self._model.plan.ahead - 1)
        masks = [plan.mask] * (plan.ahead - 1)
        blocks = [Segment(task.sequence, (), [task.delta[-1], *masks], parents) for task in tasks]
        hidden = model.run(flatten(blocks)).view(len(tasks), plan.ahead, -1)
        first, deepest = 0 if plan.from_root else 1, max(task.limits.depth for task in tasks)
        levels = model.logits(hidden[:, first : first + deepest]).unbind(1)
        if model.markov is None:
            return [
                grow_levels(task, [rows[place] for rows in levels], shape, token_ids)
                for place, task in enumerate(tasks)
            ]
        return grow_edges(tasks, levels, _Bias(model.markov, hidden, first), shape, token_ids)


class _Bias:
    """Biases of a DSpark tree's levels, by each node's path."""

    def __init__(self, head: MarkovHead, hidden: torch.Tensor, first: int) -> None:
        self._head, self._hidden, self._first = head, hidden, first

    def __call__(
        self, depth: int, owners: torch.Tensor, tokens: torch.Tensor, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if states is None:
            states = self._head.start(len(tokens))
            for place in range(self._first):  # positions before the first prediction are part of the path
                _, states = self._head.step(tokens, self._hidden[owners, place], states)
        return self._head.step(tokens, self._hidden[owners, self._first + depth], states)


def _of_root(task: GrowthTask) -> GrowthTask:
    """Return a task whose context is in the cache, to grow without further rows."""
    return replace(task, delta=task.delta[-1:], offset=task.offset - 1)


class PEagleDrafter(FeatureRowsDrafter):
    """Draft a tree; level i has depth i's most probable tokens."""

    kind, runner = PEagleSource, MasksRunner


class DFlashDrafter(FeatureRowsDrafter):
    """Draft a tree; level i has position i's most probable tokens."""

    kind, runner = DFlashSource, BlockRunner


class DSparkDrafter(FeatureRowsDrafter):
    """Draft a tree level by level; logits depend on the previous token."""

    kind, runner = DSparkSource, BlockRunner
