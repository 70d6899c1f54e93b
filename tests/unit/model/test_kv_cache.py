"""The paged cache: blocks are neither lost nor shared, committed entries are the right ones."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specinfer.errors import ExhaustedError, InvalidInputError
from specinfer.model.kv_cache import BLOCK_TOKENS, KVSequence, PagedKVCache, Slots, blocks_for


class Marks:
    """A storage of one number per slot."""

    def __init__(self, slots: int) -> None:
        self.values = np.zeros(slots)

    def move(self, source: Slots, target: Slots) -> None:
        self.values[target] = self.values[source]


class MarkedCache(PagedKVCache):
    """A cache whose entries can be written and read."""

    def __init__(self, tokens: int) -> None:
        self.storage = Marks(blocks_for(tokens) * BLOCK_TOKENS)
        super().__init__(blocks_for(tokens), self.storage)


def make_cache(tokens: int = 128) -> MarkedCache:
    return MarkedCache(tokens)


def write(cache: MarkedCache, sequence: KVSequence, position: int, mark: float) -> None:
    cache.storage.values[sequence.slots(position, position + 1)] = mark


def marks(cache: MarkedCache, sequence: KVSequence) -> list[float]:
    found: list[float] = cache.storage.values[sequence.slots(0, sequence.length)].tolist()
    return found


def test_commit_moves_a_scattered_path_behind_the_context() -> None:
    cache = make_cache()
    sequence = cache.open()
    cache.reserve(sequence, 20)
    for position in range(20):
        write(cache, sequence, position, position)
    cache.append(sequence, 14)
    #  14-+-15-17-19     positions of the tentative nodes, 14 + index
    #     +-16-18
    cache.add_nodes(sequence, [-1, 0, 0, 1, 2, 3])
    cache.commit(sequence, [0, 2, 4])
    assert marks(cache, sequence) == [*range(14), 14, 16, 18]
    assert sequence.length == 17
    cache.check()


def test_commit_of_nothing_drops_the_tree() -> None:
    cache = make_cache()
    sequence = cache.open()
    cache.reserve(sequence, 3 * BLOCK_TOKENS)
    cache.append(sequence, 2)
    cache.add_nodes(sequence, [-1] * 40)
    cache.commit(sequence, [])
    assert (sequence.length, sequence.nodes, len(sequence.blocks)) == (2, 0, 1)
    cache.check()


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 0], [7], [-1]])
def test_commit_refuses_what_is_no_path(path: list[int]) -> None:
    cache = make_cache()
    sequence = cache.open()
    cache.reserve(sequence, 4)
    cache.append(sequence, 1)
    cache.add_nodes(sequence, [-1, 0, 1])
    with pytest.raises(InvalidInputError, match="path"):
        cache.commit(sequence, path)


def test_a_full_cache_refuses_and_changes_nothing() -> None:
    cache = make_cache(2 * BLOCK_TOKENS)
    first, second = cache.open(), cache.open()
    cache.reserve(first, BLOCK_TOKENS + 1)
    cache.append(first, BLOCK_TOKENS + 1)
    with pytest.raises(ExhaustedError, match="1 blocks needed, 0 free"):
        cache.reserve(second, 1)
    cache.check()
    cache.release(first)
    cache.reserve(second, 2 * BLOCK_TOKENS)


def test_the_check_notices_a_lost_block() -> None:
    cache = make_cache()
    cache._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        cache.check()


class CacheMachine(RuleBasedStateMachine):
    """Random histories of several sequences: no block is lost or shared, entries stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(8 * BLOCK_TOKENS)
        self.held: list[tuple[KVSequence, list[float]]] = []
        self.clock = 0.0

    @rule()
    def open(self) -> None:
        self.held.append((self.cache.open(), []))

    @rule(data=st.data(), tokens=st.integers(1, 40))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        if not self.held:
            return
        sequence, expected = data.draw(st.sampled_from(self.held))
        try:
            self.cache.reserve(sequence, tokens)
        except ExhaustedError:
            self.cache.trim(sequence)
            return
        for offset in range(tokens):
            self.clock += 1
            write(self.cache, sequence, sequence.length + offset, self.clock)
            expected.append(self.clock)
        self.cache.append(sequence, tokens)

    @rule(data=st.data(), parents=st.lists(st.integers(-1, 10), max_size=12))
    def verify_tree(self, data: st.DataObject, parents: list[int]) -> None:
        if not self.held:
            return
        sequence, expected = data.draw(st.sampled_from(self.held))
        parents = [min(parent, index - 1) for index, parent in enumerate(parents)]
        try:
            self.cache.reserve(sequence, len(parents))
        except ExhaustedError:
            self.cache.trim(sequence)
            return
        for index in range(len(parents)):
            write(self.cache, sequence, sequence.length + index, self.clock + index + 1)
        self.cache.add_nodes(sequence, parents)
        leaf = data.draw(st.integers(-1, len(parents) - 1))
        path = sequence.node_path(leaf)
        expected.extend(self.clock + node + 1 for node in path)
        self.cache.commit(sequence, path)
        self.clock += len(parents)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            index = data.draw(st.integers(0, len(self.held) - 1))
            self.cache.release(self.held.pop(index)[0])

    @invariant()
    def sound(self) -> None:
        self.cache.check()
        for sequence, expected in self.held:
            assert marks(self.cache, sequence) == expected


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
