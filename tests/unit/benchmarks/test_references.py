"""What references bring, measured: sources are as similar as they are to be, and similar ones bring more."""

import random

import pytest

from benchmarks.references import BLOCK, NAMES, edited, references_of
from benchmarks.replay import DRAFTERS, replay

RNG = random.Random(3)
ROWS = [([1, 2, 3], [RNG.randrange(10, 500) for _ in range(60 + number)]) for number in range(9)]


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_blocks_of_an_answer_are_kept_with_the_overlaps_probability(overlap: float) -> None:
    answer, other = [*range(4003)], [-1, -2, -3]
    source = edited(answer, other, overlap, random.Random(1))
    assert len(source) == len(answer)
    kept = [source[at : at + BLOCK] == answer[at : at + BLOCK] for at in range(0, len(answer), BLOCK)]
    assert sum(kept) / len(kept) == pytest.approx(overlap, abs=0.1)
    assert all(token in (answer[at], other[at % 3]) for at, token in enumerate(source))


@pytest.mark.parametrize("name", NAMES)
def test_similar_sources_bring_more(name: str) -> None:
    """Answers are random here, so nothing but their sources brings anything."""
    found = [
        replay(DRAFTERS[name](), ROWS, 16, references_of(ROWS, overlap)).tokens_per_step()
        for overlap in (0.0, 0.7, 1.0)
    ]
    assert found[0] < 1.5
    assert found[0] + 0.5 < found[1] < found[2] - 0.5
    assert found[2] > 7
