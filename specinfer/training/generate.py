"""Continue many prompts with the target, for a corpus.

Simple continuous batching: when a continuation ends, the next prompt starts. A continuation depends only on its own
job, not on its batch, so an interrupted run continues with the same result.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from specinfer.system.atomic_files import replacing
from specinfer.training.corpus import Continuation, Labels

_PROMPTS_PER_PASS = 4
"""Maximum new prompts in a pass, which would delay running continuations."""


@dataclass(frozen=True, slots=True)
class ContinuationJob:
    job_id: str
    prompt: tuple[int, ...]
    temperature: float
    """Temperature; 0 is greedy."""
    seed: int
    """Seed of this job."""


@dataclass(slots=True)
class _Running:
    job: ContinuationJob
    sequence: KVSequence
    rng: np.random.Generator
    delta: tuple[int, ...]
    output: list[int] = field(default_factory=list)
    likely: list[torch.Tensor] = field(default_factory=list)
    """Per output token, [label width] most probable tokens."""
    chances: list[torch.Tensor] = field(default_factory=list)
    """Per output token, [label width] probabilities of `likely`."""

    def continuation(self) -> Continuation:
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
    over: Callable[[], bool] = lambda: False,
    keep: Callable[[Continuation, NDArray[np.int16]], None] | None = None,
) -> Iterator[tuple[ContinuationJob, Continuation]]:
    """Yield (job, continuation) when a job ends; stop tokens are included.

    All running jobs end when `over`, called after every pass, returns True. With `label_width`, continuations
    have labels of this many tokens. `keep` is called with every continuation and the hidden states of all
    its tokens but the last.
    """
    waiting, running = deque(jobs), list[_Running]()
    stops = frozenset(stop_tokens)
    while waiting or running:
        for _ in range(min(batch - len(running), _PROMPTS_PER_PASS, len(waiting))):
            running.append(_begin(runner, waiting.popleft()))
        _advance(runner, running, label_width)
        if ended := over():
            waiting.clear()
        for item in running:
            if ended or item.output[-1] in stops or len(item.output) == max_new_tokens:
                continuation = item.continuation()
                if keep is not None:
                    slots = item.sequence.slots(0, item.sequence.length)
                    keep(continuation, runner.features.read(slots, len(slots))[1])
                runner.cache.release(item.sequence)
                yield item.job, continuation
        running = [item for item in running if not item.sequence.released]


def _begin(runner: ModelRunner, job: ContinuationJob) -> _Running:
    """Start a job; share cached prefixes of its prompt."""
    sequence = runner.open()
    known = runner.cache.share(sequence, job.prompt[:-1])
    return _Running(job, sequence, np.random.default_rng((job.seed, 0)), job.prompt[known:])


def _advance(runner: ModelRunner, running: Sequence[_Running], label_width: int) -> None:
    """Run one pass: every continuation gets its next token."""
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
    """Return top probabilities [N, width], renormalised float16, and int32 indices."""
    values, ids = logits.topk(width, dim=-1)
    return values.softmax(-1).half().cpu(), ids.int().cpu()


def _next_tokens(running: Sequence[_Running], logits: torch.Tensor) -> list[int]:
    """Return each row's next token: the best one if greedy, else sampled."""
    tokens = logits.argmax(-1)
    sampled = [i for i, item in enumerate(running) if item.job.temperature > 0]
    if sampled:
        jobs = [(running[i].job.temperature, running[i].rng.random()) for i in sampled]
        temperatures, at = torch.tensor(jobs, dtype=torch.float32, device=logits.device).T[..., None]
        cumulative = (logits[sampled] / temperatures).softmax(-1).cumsum(-1)
        at = at * cumulative[:, -1:]
        tokens[sampled] = torch.searchsorted(cumulative, at, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    token_ids: list[int] = tokens.tolist()
    return token_ids


LABEL_WIDTH = 32
"""Number of tokens in each label (K)."""
CHUNK = 100


def in_draft_vocabulary(labels: Labels, vocabulary: NDArray[np.int64]) -> Labels:
    """Map labels to a draft vocabulary; other tokens get probability 0.

    Probabilities are renormalised; rows without tokens of the draft vocabulary are all 0.
    """
    places = np.searchsorted(vocabulary, labels.ids).clip(max=len(vocabulary) - 1)
    p = np.where(vocabulary[places] == labels.ids, labels.probabilities, np.float16(0))
    total = p.sum(-1, keepdims=True, dtype=np.float32)
    return Labels(places.astype(np.int32), (p / np.where(total > 0, total, 1)).astype(np.float16))


def label_corpus(
    runner: ModelRunner,
    corpus: Sequence[Continuation],
    vocabulary: NDArray[np.int64],
    directory: Path,
    width: int,
    report: Callable[[int, int], None],
) -> list[Labels]:
    """Return the labels of all continuations, in order, cached in `directory`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    labels: list[Labels] = []
    for start in range(0, len(corpus), CHUNK):
        path = directory / f"labels-{start:06d}.npz"
        if not path.is_file():
            _write(path, [_label(runner, item, vocabulary, width) for item in corpus[start : start + CHUNK]])
        labels += _read(path)
        report(len(labels), len(corpus))
    return labels


def _label(runner: ModelRunner, item: Continuation, vocabulary: NDArray[np.int64], width: int) -> Labels:
    """Label an output in one pass, as a chain after the prompt."""
    sequence = runner.open()
    chain = item.output[:-1]
    segment = Segment(sequence, item.prompt, chain, range(-1, len(chain) - 1), want_last=True)
    (logits,) = runner.forward([segment])
    runner.cache.release(sequence)
    columns = torch.from_numpy(vocabulary).to(logits.device)
    probabilities, ids = most_probable(logits.index_select(1, columns), width)
    return Labels(ids.numpy(), probabilities.numpy())


def _write(path: Path, labels: Sequence[Labels]) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            lengths=[len(x.ids) for x in labels],
            ids=np.concatenate([x.ids for x in labels]),
            probabilities=np.concatenate([x.probabilities for x in labels]),
        )


def _read(path: Path) -> list[Labels]:
    with np.load(path) as data:
        cuts = np.cumsum(data["lengths"])[:-1]
        pairs = zip(np.split(data["ids"], cuts), np.split(data["probabilities"], cuts), strict=True)
        return [Labels(ids, probabilities) for ids, probabilities in pairs]
