"""Accepted tokens and kept nodes by the nodes that were planned, as trees showed them. Pure.

A tree shows what every smaller one would have brought: its nodes are ranked by path probability, and the
smaller tree has the first of them. Beyond the largest that was planned, a doubling is thought to bring as
much as the ones before: the paper's rates give 2.86, 3.14, 3.61 accepted tokens for 21, 32, 64 nodes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

_FIRST = 0.5
"""Accepted tokens per doubling of 1 + nodes before anything was measured."""
_PRIOR = 16.0
"""Trees that what smaller sizes promise counts for."""
_MEMORY = 200.0
"""Trees after which one counts 1/e of the newest."""


@dataclass(slots=True)
class _Size:
    """Sums over trees of one size, older ones counting less."""

    weight: float = 0.0
    accepted: float = 0.0
    trees: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True, slots=True)
class Brought:
    """What a tree of some size brings on average."""

    accepted: float
    kept: float


class ByNodes:
    """Of one batch size."""

    def __init__(self, like: "ByNodes | None" = None) -> None:
        """It begins as another one does."""
        self._sizes: dict[int, _Size] = {}
        for size, sums in like._sizes.items() if like else ():
            scale = _PRIOR / max(sums.trees, _PRIOR)
            self._sizes[size] = _Size(
                sums.weight * scale, sums.accepted * scale, sums.trees * scale, sums.kept * scale
            )

    def expect(self, sizes: Sequence[int]) -> list[Brought]:
        """For trees of these sizes, in rising order, of a usual text."""
        found: list[Brought] = []
        smaller, accepted, kept = 0, 0.0, 0.0
        for size in sizes:
            doublings = log2(1 + size)
            accepted *= doublings / log2(1 + smaller) if smaller else 0.0
            accepted, kept = accepted or _FIRST * doublings, kept * size / smaller if smaller else float(size)
            seen = self._sizes.get(size)
            if seen is not None:
                accepted = (seen.accepted + _PRIOR * accepted) / (seen.weight + _PRIOR)
                kept = (seen.kept + _PRIOR * kept) / (seen.trees + _PRIOR)
            if found:
                accepted, kept = max(accepted, found[-1].accepted), max(kept, found[-1].kept)
            smaller = size
            found.append(Brought(accepted, kept))
        return found

    def add(self, planned: int, kept: int, needed: Sequence[int], weight: float) -> None:
        """Counts a tree.

        Args:
            planned: its most nodes.
            kept: the nodes that it has.
            needed: how large a tree has to be for one accepted token, for two, and so on.
            weight: what is expected of this tree over what is of a usual one.
        """
        fade = 1 - 1 / _MEMORY
        for size in sizes_up_to(planned):
            sums = self._sizes.setdefault(size, _Size())
            sums.weight = fade * sums.weight + weight
            sums.accepted = fade * sums.accepted + bisect_right(needed, size)
            sums.trees = fade * sums.trees + 1
            sums.kept = fade * sums.kept + min(kept, size)


def sizes_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and the largest itself."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most] if most else []
