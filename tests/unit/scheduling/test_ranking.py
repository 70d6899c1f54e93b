"""Rankings against a plain definition."""

from hypothesis import given
from hypothesis import strategies as st

from specinfer.scheduling.queue import Ranking

MEMBERS = st.sampled_from("abcdef")
CHANGES = st.lists(st.tuples(MEMBERS, st.none() | st.integers(0, 5)), max_size=200)


@given(CHANGES)
def test_the_first_has_the_smallest_rank_and_of_equals_was_placed_first(
    changes: list[tuple[str, int | None]],
) -> None:
    ranking: Ranking[str] = Ranking()
    ranks: dict[str, tuple[int, int]] = {}
    for number, (member, rank) in enumerate(changes):
        if rank is None:
            ranking.remove(member)
            ranks.pop(member, None)
        else:
            ranking.place(member, (rank,))
            ranks[member] = (rank, number)
        assert len(ranking) == len(ranks)
        assert ranking.first() == min(ranks, key=ranks.__getitem__, default=None)


def test_outdated_entries_do_not_gather() -> None:
    ranking: Ranking[int] = Ranking()
    ranking.place(0, (0.0,))
    for number in range(10_000):
        ranking.place(1, (number,))  # never the first
        ranking.place(2 + number, (5.0,))
        ranking.remove(2 + number)
    assert len(ranking._heap) < 100
    assert ranking.first() == 0
