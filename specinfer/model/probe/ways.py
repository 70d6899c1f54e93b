"""Compares logits of several ways to run a prompt with `transformers`.

whole            the prompt in one pass
token by token   one pass per token: state outside the KV cache is lost
in two chunks    in two passes, as a long prompt
with another     two requests of different lengths per pass, twice
as a tree        the last tokens as tree nodes, one path committed and continued
far from zero    at the last positions of the context, in two chunks, with another request at the first positions
"""

from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple, Protocol

import torch

from specinfer.model.batch import Segment
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence

Reference = Callable[[Sequence[int], int], torch.Tensor]
"""Returns the reference's logits [T, V] of tokens, from a position on."""
LONGEST_PROMPT = 24
"""Maximum prompt length in tokens, more than one block of the cache."""
_POSITIONS_AFTER_PROMPT = 3


class Runs(Protocol):
    @property
    def cache(self) -> PagedKVCache:
        """Cache of keys and values."""

    def open(self) -> KVSequence:
        """Return a new, empty sequence."""

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Run one pass; return logits per segment."""


class WayDistance(NamedTuple):
    """Difference of one way's logits from the reference."""

    way: str
    distance: float
    """Maximum over all logits, in standard deviations of the logits."""


def prompt_tokens(vocab_size: int, max_positions: int, avoided: Set[int]) -> list[int]:
    """Return a random prompt without `avoided` tokens, the same at each call."""
    length = min(LONGEST_PROMPT, max_positions - _POSITIONS_AFTER_PROMPT)
    draw = torch.Generator().manual_seed(0)
    drawn: list[int] = torch.randint(vocab_size, (4 * length + len(avoided),), generator=draw).tolist()
    return [token for token in drawn if token not in avoided][:length]


def compare_ways(runner: Runs, reference: Reference, prompt: Sequence[int], far: int) -> list[WayDistance]:
    """Run a prompt in all ways; the last begins at position `far`."""
    ids = list(prompt)
    other, cut = [*reversed(ids[: len(ids) // 3 + 2])], len(ids) // 2
    wanted = reference(ids, 0)
    ways: tuple[tuple[str, Iterator[tuple[torch.Tensor, torch.Tensor]]], ...] = (
        ("whole", _in_pieces(runner, ids, [len(ids)], wanted)),
        ("token by token", _in_pieces(runner, ids, [1] * len(ids), wanted)),
        ("in two chunks", _in_pieces(runner, ids, [cut, len(ids) - cut], wanted)),
        ("with another request", _swapped(runner, ids, other, wanted, reference)),
        ("as a tree", _as_tree(runner, ids, other, wanted, reference)),
        ("far from zero", _far(runner, ids, other, reference, far)),
    )
    return [WayDistance(way, max(_distance(*pair) for pair in pairs)) for way, pairs in ways]


def _distance(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the maximum difference of logits [V], in standard deviations."""
    actual, wanted = actual.float().cpu(), wanted.float().cpu()
    if actual.shape != wanted.shape or not bool(torch.isfinite(actual).all()):
        return float("inf")
    return float((actual - wanted).abs().max() / wanted.std().clamp(min=1e-6))


def _in_pieces(
    runner: Runs, ids: list[int], pieces: Sequence[int], wanted: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    sequence, start = runner.open(), 0
    for size in pieces:
        (logits,) = runner.forward([Segment(sequence, ids[start : start + size], want_last=True)])
        start += size
        yield logits[0], wanted[start - 1]
    runner.cache.release(sequence)


def _swapped(
    runner: Runs, ids: list[int], other: list[int], wanted: torch.Tensor, reference: Reference
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    first, second, cut = runner.open(), runner.open(), len(ids) - 2
    swapped = reference([*other, *ids[:2]], 0)
    one, two = runner.forward(
        [Segment(first, ids[:cut], want_last=True), Segment(second, other, want_last=True)]
    )
    yield one[0], wanted[cut - 1]
    yield two[0], swapped[len(other) - 1]
    two, one = runner.forward(
        [Segment(second, ids[:2], want_last=True), Segment(first, ids[cut:], want_last=True)]
    )
    yield one[0], wanted[-1]
    yield two[0], swapped[-1]
    for sequence in (first, second):
        runner.cache.release(sequence)


def _as_tree(
    runner: Runs, ids: list[int], other: list[int], wanted: torch.Tensor, reference: Reference
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (actual, wanted) logits of the way "as a tree".

    The last tokens are paths (a - b - c) and (x - y) after the context; then follows another token.
    """
    sequence, (a, b, c), (x, y) = runner.open(), ids[-3:], other[:2]
    context = ids[:-3]
    (logits,) = runner.forward(
        [Segment(sequence, context, [a, x, b, y, c], [-1, -1, 0, 1, 2], want_last=True)]
    )
    aside = reference([*context, x, y], 0)
    yield logits[0], wanted[len(context) - 1]
    for row, node in enumerate((0, 2, 4)):
        yield logits[1 + node], wanted[len(context) + row]
    for row, node in enumerate((1, 3)):
        yield logits[1 + node], aside[len(context) + row]
    runner.cache.commit(sequence, [0, 2, 4])
    (logits,) = runner.forward([Segment(sequence, [y], want_last=True)])
    yield logits[0], reference([*ids, y], 0)[-1]
    runner.cache.release(sequence)


def _far(
    runner: Runs, ids: list[int], other: list[int], reference: Reference, far: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (actual, wanted) logits of the way "far from zero"."""
    late, early, cut = runner.open(), runner.open(), len(ids) // 2
    late.shift = far
    wanted = reference(ids, far)
    for start, stop, swapped in ((0, cut, other[:1]), (cut, len(ids), other[1:])):
        one, two = runner.forward(
            [Segment(late, ids[start:stop], want_last=True), Segment(early, swapped, want_last=True)]
        )
        yield one[0], wanted[stop - 1]
    yield two[0], reference(other, 0)[-1]
    for sequence in (late, early):
        runner.cache.release(sequence)
