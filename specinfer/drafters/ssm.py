"""Draft with a small model (SSM), which caches every request's context.

`specinfer.model.drafting.expansion` grows the trees. With a window, the model reads only the end of a long prompt, as
if the context began there; noise and draws still follow positions in the whole context.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
from specinfer.model.formats.weights_in_format import WeightFormats
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


@dataclass(slots=True)
class _Read:
    """A request's tokens in the cache."""

    sequence: KVSequence
    offset: int
    """Number of context tokens before those of the cache."""

    @property
    def stop(self) -> int:
        return self.offset + self.sequence.length


class SsmDrafter(GrowingDrafter[GrowthTask]):
    """Draft with a small model that has the target's tokenizer."""

    def __init__(
        self,
        runner: ModelRunner,
        description: DrafterDescription,
        shape: GrowthShape,
        token_ids: Array | None = None,
        pinned: Iterable[int] = (),
        window: int = 0,
    ) -> None:
        """Create the drafter.

        Args:
            window: number of last tokens to read of a longer prompt, up to half as many more; 0: read all.
            token_ids: [draft vocabulary] target token of each draft token; None: the same ids.
            pinned: tokens of a trimmed head that `TrafficVocabulary` never replaces.
        """
        ids = token_ids if token_ids is not None else np.arange(runner.config.vocab_size)
        roomy = runner.config.max_positions >= 2 * window + _CATCH_UP
        self._window = window if roomy else 0
        if self._window:
            description = replace(description, max_context_len=0)
        super().__init__(description, shape, ids)
        self._runner = runner
        self._vocabulary = TrafficVocabulary(ids.tolist(), pinned) if runner.head else None
        self._read: dict[str, _Read] = {}

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
        ids = np.array(token_ids) if token_ids else None
        return cls(runner, description, shape, ids, added, options.window)

    @classmethod
    def _trained(cls, options: DrafterOptions, shape: GrowthShape) -> SsmDrafter:
        """Load a trained SSM, with the target's embeddings and tokenizer."""
        trained = load_trained(options, DraftModel)
        draft = trained.draft
        runner = ModelRunner.build(draft.config, draft.weights, runner_options(options))
        log.info("%s: weights %s", options.model, runner.weights)
        return cls(runner, trained.description, shape, draft.token_ids)

    @property
    def formats(self) -> WeightFormats:
        """Formats of the model's weights."""
        return self._runner.weights

    def release(self, request_id: str) -> None:
        read = self._read.pop(request_id, None)
        if read is not None:
            self._runner.cache.release(read.sequence)

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
        read = self._read.get(job.request_id)
        if read is None or read.stop >= len(job.context) or self._is_full(read, job):
            self.release(job.request_id)
            read = self._read[job.request_id] = self._open(job)
        sequence = read.sequence
        delta = job.context[read.stop : read.stop + _CATCH_UP]
        complete = read.stop + len(delta) == len(job.context)
        limits = self._shape.limits(job.limits) if complete else TreeLimits(0, 0)
        self._runner.cache.reserve(sequence, len(delta), self._shape.scored_nodes(limits))
        return growth_task(self._shape, job, sequence, delta, limits, offset=read.offset)

    def _open(self, job: DraftJob) -> _Read:
        """Open a sequence whose start leaves few tokens to read; cached prefixes are read once."""
        *earlier, latest = window_starts(len(job.context), self._window)
        for offset in earlier:
            read = self._shared(job, offset)
            if len(job.context) - read.stop <= self._window:
                return read
            self._runner.cache.release(read.sequence)
        return self._shared(job, latest)

    def _shared(self, job: DraftJob, offset: int) -> _Read:
        sequence = self._runner.open(job.cache_scope)
        self._runner.cache.share(sequence, job.context[offset:-1])  # the last token is always read
        return _Read(sequence, offset)

    def _is_full(self, read: _Read, job: DraftJob) -> bool:
        """Return whether a windowed context has reached the model's positions."""
        ahead = _CATCH_UP + self._shape.scored_nodes(self._shape.limits(job.limits))
        return self._window > 0 and read.sequence.length + ahead > self._runner.config.max_positions


def window_starts(length: int, window: int) -> Sequence[int]:
    """Return possible starts of a context of `length` tokens, the one to read from last.

    The others may be cached: the whole context, and starts of earlier, shorter contexts of a conversation.
    """
    step = max(window // 2, 1)
    if not window or length < window + step:
        return (0,)
    latest = (length - window) // step * step
    return 0, *range(max(latest - 4 * step, step), latest, step), latest


def load_trimmed(directory: Path, options: RunnerOptions, token_ids: tuple[int, ...]) -> ModelRunner:
    """Load a model whose head has only the rows of these tokens."""
    if token_ids and not is_checked(directory, options):
        load_checked(directory, options)
    return load_checked(directory, replace(options, token_ids=token_ids))
