"""Draft with a small model (SSM), which caches every request's context.

`specinfer.model.drafting.expansion` grows the trees.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.checkpoint import load_trained
from specinfer.drafters.growth import GrowingDrafter, growth_task, runner_options, shape_of
from specinfer.drafters.vocabulary import TrafficVocabulary, drafted_tokens
from specinfer.hub import resolve_model
from specinfer.model.arrays import Array
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import is_checked, load_checked, planned_executor
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import DraftModel
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.text.tokenizer import tokenizer_facts
from specinfer.tree import TokenTree, TreeLimits

log = logging.getLogger(__name__)

_PROMPT = 32
"""A delta of more than `_PROMPT` tokens counts as a prompt."""
_SWAPPED_AT_ONCE = 16
"""Number of missing tokens that causes a replacement of the head's rows."""
_CATCH_UP = 1024
"""Maximum context tokens of a request read in one step."""


class SsmDrafter(GrowingDrafter[GrowthTask]):
    """Draft with a small model that has the target's tokenizer."""

    def __init__(
        self,
        runner: ModelRunner,
        description: DrafterDescription,
        shape: GrowthShape,
        token_ids: Array | None = None,
        pinned: Iterable[int] = (),
    ) -> None:
        """Create the drafter.

        Args:
            token_ids: [draft vocabulary] target token of each draft token; None: the same ids.
            pinned: tokens of a trimmed head that `TrafficVocabulary` never replaces.
        """
        ids = token_ids if token_ids is not None else np.arange(runner.config.vocab_size)
        super().__init__(description, shape, ids)
        self._runner = runner
        self._vocabulary = TrafficVocabulary(ids.tolist(), pinned) if runner.head else None
        self._sequences: dict[str, KVSequence] = {}

    @classmethod
    def from_options(cls, options: DrafterOptions) -> SsmDrafter:
        """Load the model."""
        shape = shape_of(options)
        directory = resolve_model(options.model)
        if is_draft_checkpoint(directory):
            return cls._trained(options, shape)
        settings = runner_options(options)
        # the generic executor cannot trim heads
        token_ids = (
            drafted_tokens(directory, options.vocabulary) if planned_executor(directory, settings) else ()
        )
        runner = load_trimmed(directory, settings, token_ids)
        description = DrafterDescription(
            options.model,
            load_config(directory).vocab_size,
            tokenizer_facts(directory).fingerprint,
            runner.config.max_positions,
        )
        added = tokenizer_facts(directory).added_ids
        return cls(runner, description, shape, np.array(token_ids) if token_ids else None, added)

    @classmethod
    def _trained(cls, options: DrafterOptions, shape: GrowthShape) -> SsmDrafter:
        """Load a trained SSM, with the target's embeddings and tokenizer."""
        trained = load_trained(options, DraftModel)
        draft = trained.draft
        runner = ModelRunner.build(draft.config, draft.weights, runner_options(options))
        log.info("%s: weights %s", options.model, runner.weights)
        return cls(runner, trained.description, shape, draft.token_ids)

    def release(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._runner.cache.release(sequence)

    def _grow(self, tasks: list[GrowthTask]) -> list[TokenTree]:
        self._follow_traffic(tasks)
        return self._runner.grow(tasks, self._shape, self._token_ids)

    def _follow_traffic(self, tasks: Iterable[GrowthTask]) -> None:
        """Add the rows of new contexts' tokens to a trimmed head.

        Rows of a prompt's tokens are added at once, rows of answers' tokens when `_SWAPPED_AT_ONCE` are missing.
        """
        if self._vocabulary is None or self._runner.head is None:
            return
        for task in tasks:
            self._vocabulary.note(task.delta)
        reads = any(len(task.delta) > _PROMPT for task in tasks)
        if len(self._vocabulary.missing) >= (1 if reads else _SWAPPED_AT_ONCE):
            changed = self._vocabulary.swap()
            self._runner.head.replace(changed)
            self._token_ids[list(changed)] = [*changed.values()]

    def _task(self, job: DraftJob) -> GrowthTask:
        """Find the request's cache; reserve space for context and tree."""
        sequence = self._sequences.get(job.request_id)
        if sequence is None or sequence.length >= len(job.context):
            self.release(job.request_id)
            sequence = self._sequences[job.request_id] = self._runner.open(job.cache_scope)
            # common prefixes are read once; the last token is always read
            self._runner.cache.share(sequence, job.context[:-1])
        delta = job.context[sequence.length : sequence.length + _CATCH_UP]
        complete = sequence.length + len(delta) == len(job.context)
        limits = self._shape.limits(job.limits) if complete else TreeLimits(0, 0)
        self._runner.cache.reserve(sequence, len(delta), self._shape.scored_nodes(limits))
        return growth_task(self._shape, job, sequence, delta, limits)


def load_trimmed(directory: Path, options: RunnerOptions, token_ids: tuple[int, ...]) -> ModelRunner:
    """Load a model whose head has only the rows of these tokens."""
    if token_ids and not is_checked(directory, options):
        load_checked(directory, options)
    return load_checked(directory, replace(options, token_ids=token_ids))
