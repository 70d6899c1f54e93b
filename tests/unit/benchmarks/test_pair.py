"""The report of a model pair: medians over turns, and ratios within each turn."""

from collections.abc import Mapping, Sequence

from benchmarks.pair import LLAMA_SERVER, Rates, RoundRates, report

Figures = Mapping[tuple[str, int, str], Sequence[float]]


def rates_of(read: Figures, unread_share: float) -> Rates:
    """Return rates of turns whose first round has this share of the second's rate."""
    return {key: [RoundRates(unread_share * rate, rate) for rate in turns] for key, turns in read.items()}


def test_ratios_are_those_of_the_same_turn() -> None:
    rates = rates_of(
        {
            ("code", 1, "plain"): [10.0, 20.0, 40.0],
            ("code", 1, "trees"): [10.0, 40.0, 40.0],
            ("code", 1, f"{LLAMA_SERVER} plain"): [5.0, 5.0, 5.0],
            ("code", 1, f"{LLAMA_SERVER} draft"): [2.0, 10.0, 2.0],
        },
        0.5,
    )
    first, second = report("A pair", "about", rates).split("## Prompts unread")
    plain, trees, other, draft = first.strip().splitlines()[-4:]
    assert plain == "| code | 1 | plain | 20.0 (10.0 to 40.0) |  |  | 2.00x (2.00 to 8.00) |"
    assert (
        trees
        == "| code | 1 | trees | 40.0 (10.0 to 40.0) | 1.00x (1.00 to 2.00) | 1.00x | 4.00x (2.00 to 8.00) |"
    )
    assert other == "| code | 1 | llama-server plain | 5.0 (5.0 to 5.0) | 0.25x (0.12 to 0.50) | 0.50x |  |"
    assert draft == "| code | 1 | llama-server draft | 2.0 (2.0 to 10.0) | 0.20x (0.05 to 0.50) | 0.20x |  |"
    assert "| code | 1 | plain | 10.0 (5.0 to 20.0) |  |  | 2.00x (2.00 to 8.00) |" in second


def test_there_may_be_no_peer() -> None:
    rates = rates_of({("chat", 4, "plain"): [10.0], ("chat", 4, "trees"): [15.0]}, 1.0)
    assert report("A pair", "about", rates).splitlines()[-1] == (
        "| chat | 4 | trees | 15.0 (15.0 to 15.0) | 1.50x (1.50 to 1.50) | 1.50x |  |"
    )
