"""The advice at the end of training: which draft to serve, by measured speeds."""

import re

import pytest

from specinfer.llm.draft_gains import Gains, advice

SIBLING = Gains("small", 20.0, (1.1, 1.5, 1.4))


@pytest.mark.parametrize(
    ("gains", "last"),
    [
        ([Gains("own", 20.0, (1.0, 1.3, 1.2))], "serve it: specinfer serve --model m --draft own"),
        ([Gains("own", 20.0, (2.0, 2.0, 2.0)), SIBLING], "serve it: specinfer serve --model m --draft own"),
        (
            [Gains("own", 20.0, (0.8, 1.2, 1.3)), SIBLING],
            "do not serve it: small is faster; .* --draft small",
        ),
        ([Gains("own", 20.0, (0.8, 0.9, 1.3))], "do not serve it: .*--draft none"),
        ([Gains("own", 20.0, (0.8,)), Gains("small", 20.0, (1.0,))], "do not serve it: .*--draft none"),
    ],
)
def test_a_speculator_is_served_only_if_it_is_the_fastest(gains: list[Gains], last: str) -> None:
    *lines, conclusion = advice("m", gains)
    assert re.fullmatch(last, conclusion)
    assert [line.split(":")[0] for line in lines[1:]] == [gain.draft for gain in gains]


def test_a_line_has_the_median_and_the_range() -> None:
    assert SIBLING.line() == "small: 1.40x of plain decoding (1.10 to 1.50), 20.0 -> 28.0 tokens/s"
