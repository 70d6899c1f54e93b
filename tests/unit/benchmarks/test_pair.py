"""The report of a pair: medians over turns, and ratios of the same turn."""

from benchmarks.pair import LLAMA_CPP, report


def test_ratios_are_those_of_the_same_turn() -> None:
    rates = {
        ("code", 1, "plain"): [10.0, 20.0, 40.0],
        ("code", 1, "trees"): [10.0, 40.0, 40.0],
        ("code", 1, LLAMA_CPP): [5.0, 5.0, 5.0],
    }
    plain, trees, other = report("A pair", "about", rates).splitlines()[-3:]
    assert plain == "| code | 1 | plain | 20.0 (10.0 to 40.0) |  |  |"
    assert trees == "| code | 1 | trees | 40.0 (10.0 to 40.0) | 1.00x (1.00 to 2.00) | 1.00x |"
    assert other == "| code | 1 | llama.cpp plain | 5.0 (5.0 to 5.0) | 0.25x (0.12 to 0.50) | 0.50x |"
