"""The advice at the end of training: which draft to serve, by measured speeds."""

import re
from typing import Any

import pytest

from specinfer.llm.draft_gains import Gains, advice

SIBLING = Gains("small", 20.0, (1.1, 1.5, 1.4, 1.4), 1.6)
SERVE = "serve it: specinfer serve --model m --draft own"
UNKNOWN = "not known whether to serve it: "


@pytest.mark.parametrize(
    ("gains", "last"),
    [
        ([((1.1, 1.3, 1.2, 1.2), 1.4)], SERVE),
        ([((2.0, 2.0, 2.0, 2.0), 2.5), SIBLING], SERVE),
        ([((1.02, 1.05, 1.06, 1.09), 1.2), SIBLING], "do not serve it: small is faster; .* --draft small"),
        (
            [((1.2, 1.3, 1.3, 1.3), 1.5), SIBLING],
            "serve it or small: it is not known which is faster; .* --draft own",
        ),
        ([((0.8, 0.9, 0.9, 0.95), 1.5)], "do not serve it: .*--draft none"),
        ([((0.8, 0.9, 0.9, 0.95), 1.5), SIBLING], "do not serve it: small is faster; .* --draft small"),
        ([((4.70, 4.75, 4.6, 4.8), 1.0)], UNKNOWN + r"4\.7.x is impossible with 1\.000 tokens a step; .*"),
        (
            [((1.2, 1.2, 1.2, 1.2), 1.0), SIBLING],
            UNKNOWN + r"1\.20x is impossible with 1\.000 tokens a step; .*",
        ),
        ([((0.9, 1.3, 1.2, 1.2), 1.4)], UNKNOWN + r"the range 0\.90 to 1\.30 contains 1; .*"),
        ([((0.9, 1.0, 0.9, 0.9), 1.4)], UNKNOWN + r"the range 0\.90 to 1\.00 contains 1; .*"),
        ([((1.2, 1.3), 1.5)], UNKNOWN + "2 held-out prompts, 4 are needed; .*"),
    ],
)
def test_a_speculator_is_served_only_if_it_is_known_to_be_the_fastest(gains: list[Any], last: str) -> None:
    measured = [one if isinstance(one, Gains) else Gains("own", 20.0, *one) for one in gains]
    *lines, conclusion = advice("m", measured, 10_000)
    assert re.fullmatch(last, conclusion)
    assert [line.split(":")[0] for line in lines[1:]] == [gain.draft for gain in measured]
    *_, conclusion = advice("m", measured, 9_999)
    assert re.fullmatch(UNKNOWN + "9,999 tokens in the corpus, 10,000 are needed", conclusion)


def test_a_line_has_the_median_and_the_range() -> None:
    assert SIBLING.line() == (
        "small: 1.40x of plain decoding (1.10 to 1.50), 20.0 -> 28.0 tokens/s, 1.600 tokens a step"
    )
