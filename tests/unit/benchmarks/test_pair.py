"""The report of a model pair: medians over turns, and ratios within each turn."""

from benchmarks.pair import LLAMA_SERVER, report


def test_ratios_are_those_of_the_same_turn() -> None:
    rates = {
        ("code", 1, "plain"): [10.0, 20.0, 40.0],
        ("code", 1, "trees"): [10.0, 40.0, 40.0],
        ("code", 1, f"{LLAMA_SERVER} plain"): [5.0, 5.0, 5.0],
        ("code", 1, f"{LLAMA_SERVER} draft"): [2.0, 10.0, 2.0],
    }
    plain, trees, other, draft = report("A pair", "about", rates).splitlines()[-4:]
    assert plain == "| code | 1 | plain | 20.0 (10.0 to 40.0) |  |  | 2.00x (2.00 to 8.00) |"
    assert (
        trees
        == "| code | 1 | trees | 40.0 (10.0 to 40.0) | 1.00x (1.00 to 2.00) | 1.00x | 4.00x (2.00 to 8.00) |"
    )
    assert other == "| code | 1 | llama-server plain | 5.0 (5.0 to 5.0) | 0.25x (0.12 to 0.50) | 0.50x |  |"
    assert draft == "| code | 1 | llama-server draft | 2.0 (2.0 to 10.0) | 0.20x (0.05 to 0.50) | 0.20x |  |"


def test_there_may_be_no_peer() -> None:
    rates = {("chat", 4, "plain"): [10.0], ("chat", 4, "trees"): [15.0]}
    assert report("A pair", "about", rates).splitlines()[-1] == (
        "| chat | 4 | trees | 15.0 (15.0 to 15.0) | 1.50x (1.50 to 1.50) | 1.50x |  |"
    )
