"""What the target thinks at every token of a corpus, computed once and kept on disk.

One pass per group of continuations gives both: hidden states after some of its layers at all tokens but the
last (what EAGLE and Medusa read), and its most probable tokens at every output token (what they learn).
Chunks of the corpus are files of their own, so that an interrupted run goes on where it stopped, and hidden
states are mapped, not read: a corpus of a million tokens with three layers of 576 numbers is 3.5 GB.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from speculator_svc.training.corpus import Continuation, Labels
from speculator_svc.training.generate import most_probable
from speculator_svc.training.labels import CHUNK, LABEL_WIDTH

_TOKENS_PER_PASS = 1024


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Of one continuation of p prompt and n output tokens."""

    states: NDArray[np.int16]
    """[p + n - 1, layers, hidden] bfloat16, by their bits."""
    labels: Labels
    """In the target's vocabulary."""


def think(
    runner: ModelRunner,
    corpus: Sequence[Continuation],
    layers: Sequence[int],
    directory: Path,
    report: Callable[[int, int], None],
) -> list[Thoughts]:
    """The thoughts of all continuations, in order; `layers` as of `ModelRunner.forward_with_features`."""
    thoughts: list[Thoughts] = []
    for start in range(0, len(corpus), CHUNK):
        chunk = corpus[start : start + CHUNK]
        place = directory / _digest(chunk, layers)
        if not (place / "labels.npz").is_file():
            _write(place, _think(runner, chunk, layers))
        thoughts += _read(place, chunk)
        report(len(thoughts), len(corpus))
    return thoughts


def _digest(chunk: Sequence[Continuation], layers: Sequence[int]) -> str:
    digest = hashlib.blake2b(repr(tuple(layers)).encode(), digest_size=8)
    for item in chunk:
        digest.update(np.array([*item.prompt, -1, *item.output], np.int32).tobytes())
    return f"features-{digest.hexdigest()}"


def _groups(chunk: Sequence[Continuation]) -> Iterator[list[Continuation]]:
    """Neighbours that fit into one pass together."""
    group: list[Continuation] = []
    for item in chunk:
        tokens = sum(len(other.prompt) + len(other.output) for other in [*group, item])
        if group and tokens > _TOKENS_PER_PASS:
            yield group
            group = []
        group.append(item)
    yield group


def _think(
    runner: ModelRunner, chunk: Sequence[Continuation], layers: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(states, ids, probabilities) of each continuation: its output but the last token is scored as a chain
    behind the prompt."""
    for group in _groups(chunk):
        segments = []
        for item in group:
            rest = item.output[:-1]
            segments.append(Segment(runner.open(), item.prompt, rest, range(-1, len(rest) - 1), True))
        logits, states = runner.forward_with_features(segments, layers)
        for segment, rows, own in zip(segments, logits, states, strict=True):
            runner.cache.release(segment.sequence)
            probabilities, ids = most_probable(rows, LABEL_WIDTH)
            yield own, ids, probabilities


def _write(place: Path, found: Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    states, ids, probabilities = zip(*found, strict=True)
    np.save(place / "states.npy", torch.cat(states).view(torch.int16).numpy())
    partial = place / "labels.part.npz"
    np.savez(partial, ids=torch.cat(ids).numpy(), probabilities=torch.cat(probabilities).numpy())
    partial.replace(place / "labels.npz")  # last: whoever finds it finds a whole chunk


def _read(place: Path, chunk: Sequence[Continuation]) -> Iterator[Thoughts]:
    outputs = np.cumsum([len(item.output) for item in chunk])[:-1]
    tokens = np.cumsum([len(item.prompt) + len(item.output) - 1 for item in chunk])[:-1]
    with np.load(place / "labels.npz") as data:
        ids, probabilities = (np.split(data[name], outputs) for name in ("ids", "probabilities"))
    states = np.split(np.load(place / "states.npy", mmap_mode="r"), tokens)
    for own, one, other in zip(states, ids, probabilities, strict=True):
        yield Thoughts(own, Labels(one, other))
