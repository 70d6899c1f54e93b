"""The advice at the end of training: which draft to serve, by measured speeds."""

import re

import pytest

from specinfer.llm.draft_gains import Gains, advice

SIBLING = Gains("small", 20.0, (*(1.1, 1.5), *[1.4] * 38), 1.6)
SLOWER = Gains("slower", 20.0, (0.96,) * 40, 1.6)
SERVE = "serve it: specinfer serve --model m --draft own"
UNKNOWN = "not known whether to serve it: "


def own(least: float, most: float, tokens: float, draft: str = "own", prompts: int = 40) -> Gains:
    """Return speed-ups spread evenly, of which the range has the middle third."""
    step = (most - least) / 13
    return Gains(draft, 20.0, tuple(least + (i - 13) * step for i in range(prompts)), tokens)


@pytest.mark.parametrize(
    ("trained", "others", "last"),
    [
        ([own(1.1, 1.3, 1.4)], [], SERVE),
        ([own(2.0, 2.1, 2.5)], [SIBLING], SERVE),
        ([own(1.0, 1.1, 1.2, "other"), own(1.1, 1.3, 1.4)], [], SERVE),
        ([own(1.02, 1.09, 1.2)], [SIBLING], "do not serve it: small is faster; .* --draft small"),
        (
            [own(1.35, 1.45, 1.5)],
            [SIBLING],
            "serve it or small: it is not known which is faster; .* --draft own",
        ),
        ([own(0.8, 0.95, 1.5)], [], "do not serve it: .*--draft none"),
        ([own(0.8, 0.95, 1.5)], [SIBLING], "do not serve it: small is faster; .* --draft small"),
        ([own(0.8, 0.95, 1.5)], [SLOWER], "do not serve it: .*--draft none"),
        # each prompt gains as much from n-grams, which also draft along with it
        (
            [own(1.1, 1.3, 1.4)],
            [SIBLING, own(1.1, 1.3, 1.4, "ngram")],
            "do not serve it: small is faster; .*",
        ),
        (
            [own(1.1, 1.3, 1.4)],
            [own(1.1, 1.3, 1.4, "ngram")],
            "serve it or ngram: it is not known which is faster; .* --draft own",
        ),
        # a small difference that every prompt shows, although both spread much
        ([own(1.15, 1.45, 1.5)], [own(1.1, 1.4, 1.5, "ngram")], SERVE),
        ([own(4.6, 4.8, 1.0)], [], UNKNOWN + r"4\.70x is impossible with 1\.000 tokens a step; .*"),
        ([own(1.2, 1.2, 1.0)], [SIBLING], UNKNOWN + r"1\.20x is impossible with 1\.000 tokens a step; .*"),
        ([own(0.9, 1.3, 1.4)], [], UNKNOWN + r"the range 0\.90 to 1\.30 contains 1; .*"),
        ([own(0.9, 1.0, 1.4)], [], UNKNOWN + r"the range 0\.90 to 1\.00 contains 1; .*"),
        ([own(1.2, 1.3, 1.5, prompts=39)], [], UNKNOWN + "39 held-out prompts, 40 are needed; .*"),
    ],
)
def test_a_speculator_is_served_only_if_it_is_known_to_be_the_fastest(
    trained: list[Gains], others: list[Gains], last: str
) -> None:
    *lines, conclusion = advice("m", trained, others, 10_000)
    assert re.fullmatch(last, conclusion)
    assert [line.split(":")[0] for line in lines[1:]] == [gain.draft for gain in (*trained, *others)]
    *_, conclusion = advice("m", trained, others, 9_999)
    assert re.fullmatch(UNKNOWN + "9,999 tokens in the corpus, 10,000 are needed", conclusion)


def test_a_line_has_the_median_and_its_range() -> None:
    assert SIBLING.line() == (
        "small: 1.40x of plain decoding (1.40 to 1.40), 20.0 -> 28.0 tokens/s, 1.600 tokens a step"
    )
