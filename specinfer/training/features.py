"""Compute and cache a corpus' hidden states and labels on disk.

Hidden states are outputs of some target layers at all tokens except the last; EAGLE and Medusa read them. Labels are
the target's most probable tokens at every output token. `compute_states` computes both with one pass per group of
continuations.

Every chunk of the corpus has its own files, so that an interrupted run can continue. Hidden states are memory-mapped: a
million tokens with three layers of 576 numbers take 3.5 GB. States of more layers than needed can be used, so EAGLE's
states also train Medusa's heads.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from specinfer.training.corpus import Continuation, Labels
from specinfer.training.generate import CHUNK, LABEL_WIDTH, most_probable

_TOKENS_PER_PASS = 1024
_LABELS = "labels.npz"


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Hidden states and labels of p prompt and n output tokens."""

    states: NDArray[np.int16]
    """[p + n - 1, layers, hidden] bits of bfloat16."""
    labels: Labels
    """Labels in the target's vocabulary."""


def compute_states(
    runner: ModelRunner,
    corpus: Sequence[Continuation],
    layers: Sequence[int],
    directory: Path,
    report: Callable[[int, int], None],
) -> list[TargetStates]:
    """Load or compute all states and labels; `layers` as in `forward_with_features`."""
    states: list[TargetStates] = []
    for start in range(0, len(corpus), CHUNK):
        chunk = corpus[start : start + CHUNK]
        digest = _digest(chunk)
        kept = _kept(directory, digest, layers) or Kept(_place(directory, digest, layers), tuple(layers))
        if not kept.whole:
            _write(kept.place, _compute(runner, chunk, layers))
        states += _read(kept, chunk, layers)
        report(len(states), len(corpus))
    return states


class Kept(NamedTuple):
    """Cached files of a chunk's states and labels, and the states' layers."""

    place: Path
    layers: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """True if the files are complete."""
        return (self.place / _LABELS).is_file()

    def states(self, layers: Sequence[int]) -> NDArray[np.int16]:
        """Return states [tokens, layers, hidden], memory-mapped if layers are adjacent."""
        states: NDArray[np.int16] = np.load(self.place / "states.npy", mmap_mode="r")
        places = [self.layers.index(layer) for layer in layers]
        if places == list(range(places[0], places[-1] + 1)):
            return states[:, places[0] : places[-1] + 1]
        return states[:, places]


def _digest(chunk: Sequence[Continuation]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for item in chunk:
        digest.update(np.array([*item.prompt, -1, *item.output], np.int32).tobytes())
    return digest.hexdigest()


def _place(directory: Path, digest: str, layers: Sequence[int]) -> Path:
    return directory / f"features-{digest}-{'-'.join(map(str, layers))}"


def _kept(directory: Path, digest: str, layers: Sequence[int]) -> Kept | None:
    """Return cached files with states of all these layers, if any."""
    for place in sorted(directory.glob(f"features-{digest}-*")):
        kept = Kept(place, tuple(int(layer) for layer in place.name.split("-")[2:]))
        if kept.whole and set(layers) <= set(kept.layers):
            return kept
    return None


def _groups(chunk: Sequence[Continuation]) -> Iterator[list[Continuation]]:
    """Yield groups of consecutive continuations for one pass each."""
    group: list[Continuation] = []
    for item in chunk:
        tokens = sum(len(other.prompt) + len(other.output) for other in [*group, item])
        if group and tokens > _TOKENS_PER_PASS:
            yield group
            group = []
        group.append(item)
    yield group


def _compute(
    runner: ModelRunner, chunk: Sequence[Continuation], layers: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Compute (states, ids, probabilities) of each continuation.

    The output without its last token is scored as a chain after the prompt.
    """
    for group in _groups(chunk):
        segments = []
        for item in group:
            rest = item.output[:-1]
            segments.append(Segment(runner.open(), item.prompt, rest, range(-1, len(rest) - 1), True))
        logits, states = runner.forward_with_features(segments, layers)
        for segment, rows, states_of_text in zip(segments, logits, states, strict=True):
            runner.cache.release(segment.sequence)
            probabilities, ids = most_probable(rows, LABEL_WIDTH)
            yield states_of_text, ids, probabilities


def _write(place: Path, rows: Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    states, ids, probabilities = zip(*rows, strict=True)
    np.save(place / "states.npy", torch.cat(states).view(torch.int16).numpy())
    partial = place / "labels.part.npz"
    np.savez(partial, ids=torch.cat(ids).numpy(), probabilities=torch.cat(probabilities).numpy())
    partial.replace(place / _LABELS)  # written last: marks a complete chunk


def _read(kept: Kept, chunk: Sequence[Continuation], layers: Sequence[int]) -> Iterator[TargetStates]:
    outputs = np.cumsum([len(item.output) for item in chunk])[:-1]
    tokens = np.cumsum([len(item.prompt) + len(item.output) - 1 for item in chunk])[:-1]
    with np.load(kept.place / _LABELS) as data:
        ids, probabilities = (np.split(data[name], outputs) for name in ("ids", "probabilities"))
    states = np.split(kept.states(layers), tokens)
    for states_of_text, one, other in zip(states, ids, probabilities, strict=True):
        yield TargetStates(states_of_text, Labels(one, other))
