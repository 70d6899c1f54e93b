"""Expansion vectors and limits of trees."""

import pytest

from specinfer.errors import InvalidInputError
from specinfer.tree import ExpansionVector, TreeLimits


def test_counts_nodes_of_the_papers_vector() -> None:
    # <1,1,3,1,1,1,1,1> has 2 + 3*6 = 20 nodes below the root (paper, section 3)
    assert ExpansionVector.parse("1,1,3,1,1,1,1,1").nodes == 20
    assert ExpansionVector.parse("<3, 1>").widths == (3, 1)


@pytest.mark.parametrize("text", ["", "1,,2", "0", "a", "1,-1", "1.5"])
def test_bad_vectors_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="expansion"):
        ExpansionVector.parse(text)


def test_empty_limits() -> None:
    assert TreeLimits(0, 5).empty
    assert TreeLimits(5, 0).empty
    assert not TreeLimits(1, 1).empty
