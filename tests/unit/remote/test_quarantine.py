"""A speculator that sends malformed trees is excluded for longer and longer, until it sends sound trees."""

from specinfer.engine.draft_faults import FIRST_S, IN_A_ROW, LONGEST_S, Quarantine


def test_it_begins_after_several_malformed_trees_in_a_row() -> None:
    record = Quarantine()
    begun = [record.malformed(0.0) for _ in range(IN_A_ROW)]
    assert begun == [0.0] * (IN_A_ROW - 1) + [FIRST_S]
    assert [record.holds(t) for t in (0.0, FIRST_S / 2, FIRST_S)] == [True, True, False]


def test_a_sound_tree_in_between_restarts_the_count() -> None:
    record = Quarantine()
    for _ in range(5):
        assert not any(record.malformed(0.0) for _ in range(IN_A_ROW - 1))
        record.sound()
    assert not record.holds(0.0)


def test_other_trees_of_a_message_do_not_prolong_it() -> None:
    record = Quarantine()
    begun = [record.malformed(0.0) for _ in range(5 * IN_A_ROW)]
    assert [s for s in begun if s] == [FIRST_S]


def test_one_malformed_tree_after_its_return_doubles_the_time() -> None:
    record, now, lasted = Quarantine(), 0.0, []
    for _ in range(IN_A_ROW - 1):
        record.malformed(now)
    for _ in range(12):
        lasted.append(record.malformed(now))
        now += lasted[-1]
    assert lasted == [min(FIRST_S * 2**i, LONGEST_S) for i in range(12)]
    for _ in range(IN_A_ROW):
        record.sound()
    assert [record.malformed(now) for _ in range(IN_A_ROW)] == [0.0] * (IN_A_ROW - 1) + [FIRST_S]
