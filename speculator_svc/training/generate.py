"""Lets the target continue prompts, many at once: the raw material of a corpus.

Continuous batching in its simplest form: as soon as one continuation ends the next prompt takes its
place. A continuation depends on its own job alone, never on its batch-mates, so an interrupted run goes on
with the same result. Knows no files.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from speculator_svc.training.corpus import Continuation, Labels

_PROMPTS_PER_PASS = 4
"""New prompts read in one pass, so that reading them does not stall the others for long."""


@dataclass(frozen=True, slots=True)
class ContinuationJob:
    """One prompt to continue."""

    job_id: str
    prompt: tuple[int, ...]
    temperature: float
    """0 is greedy."""
    seed: int
    """Of this job alone."""


@dataclass(slots=True)
class _Running:
    job: ContinuationJob
    sequence: KVSequence
    rng: np.random.Generator
    delta: tuple[int, ...]
    output: list[int] = field(default_factory=list)
    likely: list[torch.Tensor] = field(default_factory=list)
    """[label width] the most probable tokens at each output token."""
    chances: list[torch.Tensor] = field(default_factory=list)
    """[label width] their probabilities."""

    def continuation(self) -> Continuation:
        """What came of it."""
        labels = None
        if self.likely:
            labels = Labels(torch.stack(self.likely).numpy(), torch.stack(self.chances).numpy())
        return Continuation(self.job.prompt, tuple(self.output), labels)


def continue_prompts(
    runner: ModelRunner,
    jobs: Iterable[ContinuationJob],
    batch: int,
    max_new_tokens: int,
    stop_tokens: Sequence[int],
    label_width: int = 0,
) -> Iterator[tuple[ContinuationJob, Continuation]]:
    """Yields jobs and what came of them as they end; a stop token is the last of its output.

    With a `label_width` the target's so many most probable tokens at every output token come along.
    """
    waiting, running = deque(jobs), list[_Running]()
    stops = frozenset(stop_tokens)
    while waiting or running:
        for _ in range(min(batch - len(running), _PROMPTS_PER_PASS, len(waiting))):
            running.append(_begin(runner, waiting.popleft()))
        _advance(runner, running, label_width)
        for item in running:
            if item.output[-1] in stops or len(item.output) == max_new_tokens:
                runner.cache.release(item.sequence)
                yield item.job, item.continuation()
        running = [item for item in running if not item.sequence.released]


def _begin(runner: ModelRunner, job: ContinuationJob) -> _Running:
    """What prompts have in common (system prompt, open turn) is found in the cache."""
    sequence = runner.open()
    known = runner.cache.share(sequence, job.prompt[:-1])
    return _Running(job, sequence, np.random.default_rng((job.seed, 0)), job.prompt[known:])


def _advance(runner: ModelRunner, running: Sequence[_Running], label_width: int) -> None:
    """One pass: every continuation gets its next token."""
    logits = torch.cat(runner.forward([Segment(x.sequence, x.delta, want_last=True) for x in running]))
    for item, token in zip(running, _next_tokens(running, logits), strict=True):
        item.output.append(token)
        item.delta = (token,)
    if label_width:
        values, ids = most_probable(logits, label_width)
        for item, chances, likely in zip(running, values, ids, strict=True):
            item.chances.append(chances)
            item.likely.append(likely)


def most_probable(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [N, width] in float16, renormalised over these tokens, and their columns in int32."""
    values, ids = logits.topk(width, dim=-1)
    return values.softmax(-1).half().cpu(), ids.int().cpu()


def _next_tokens(running: Sequence[_Running], logits: torch.Tensor) -> list[int]:
    """Greedy rows take the maximum; sampled ones invert their distribution at a number of their own."""
    tokens = logits.argmax(-1)
    sampled = [i for i, item in enumerate(running) if item.job.temperature > 0]
    if sampled:
        jobs = [(running[i].job.temperature, running[i].rng.random()) for i in sampled]
        temperatures, at = torch.tensor(jobs, dtype=torch.float32, device=logits.device).T[..., None]
        cumulative = (logits[sampled] / temperatures).softmax(-1).cumsum(-1)
        at = at * cumulative[:, -1:]
        tokens[sampled] = torch.searchsorted(cumulative, at, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    found: list[int] = tokens.tolist()
    return found
