"""The paged cache: blocks are neither lost nor shared wrongly, and committed entries are right."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specinfer.errors import ExhaustedError, InvalidInputError
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, Slots, blocks_for


class Marks:
    """Storage with one number per slot."""

    def __init__(self, slots: int) -> None:
        self.values = np.zeros(slots)

    def move(self, source: Slots, target: Slots) -> None:
        self.values[target] = self.values[source]

    def rotate(self, slots: Slots, delta: int) -> None:
        self.turned = (slots.tolist(), delta)


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
    values: list[float] = cache.storage.values[sequence.slots(0, sequence.length)].tolist()
    return values


def test_commit_moves_a_scattered_path_to_the_end_of_the_context() -> None:
    cache = make_cache()
    sequence = cache.open()
    cache.reserve(sequence, 20)
    for position in range(20):
        write(cache, sequence, position, position)
    cache.append(sequence, range(14))
    #  14-+-15-17-19     positions of the tentative nodes, 14 + index
    #     +-16-18
    cache.add_nodes(sequence, range(6), [-1, 0, 0, 1, 2, 3])
    cache.commit(sequence, [0, 2, 4])
    assert marks(cache, sequence) == [*range(14), 14, 16, 18]
    assert sequence.length == 17
    cache.check()


def test_commit_of_nothing_drops_the_tree() -> None:
    cache = make_cache()
    sequence = cache.open()
    cache.reserve(sequence, 3 * BLOCK_TOKENS)
    cache.append(sequence, [5, 6])
    cache.add_nodes(sequence, range(40), [-1] * 40)
    cache.commit(sequence, [])
    assert (sequence.length, sequence.nodes, len(sequence.blocks)) == (2, 0, 1)
    cache.check()


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 0], [7], [-1]])
def test_commit_refuses_what_is_no_path(path: list[int]) -> None:
    cache = make_cache()
    sequence = cache.open()
    cache.reserve(sequence, 4)
    cache.append(sequence, [5])
    cache.add_nodes(sequence, [7, 8, 9], [-1, 0, 1])
    with pytest.raises(InvalidInputError, match="path"):
        cache.commit(sequence, path)


def test_a_full_cache_refuses_and_changes_nothing() -> None:
    cache = make_cache(2 * BLOCK_TOKENS)
    first, second = cache.open(), cache.open()
    cache.reserve(first, BLOCK_TOKENS + 1)
    cache.append(first, range(BLOCK_TOKENS + 1))
    with pytest.raises(ExhaustedError, match="a request needs 1 more blocks of 16 tokens, 0 are free"):
        cache.reserve(second, 1)
    cache.check()
    cache.release(first)
    cache.reserve(second, 2 * BLOCK_TOKENS)


def test_the_check_notices_a_lost_block() -> None:
    cache = make_cache()
    cache.pool._free.popitem()
    with pytest.raises(AssertionError, match="lost"):
        cache.check()


def fill(cache: MarkedCache, sequence: KVSequence, tokens: list[int]) -> None:
    """Append context; as in a model, an entry depends on all tokens up to its own."""
    cache.reserve(sequence, len(tokens))
    for offset in range(len(tokens)):
        write(cache, sequence, sequence.length + offset, entry_of([*sequence.tokens, *tokens[: offset + 1]]))
    cache.append(sequence, tokens)


def entry_of(tokens: list[int]) -> float:
    return float(hash(tuple(tokens)) % 1_000_003)


def expected_entries(tokens: list[int]) -> list[float]:
    return [entry_of(tokens[: i + 1]) for i in range(len(tokens))]


def test_a_shared_prefix_is_found_and_counted() -> None:
    cache = make_cache(20 * BLOCK_TOKENS)
    first, second, third = cache.open(), cache.open(), cache.open()
    prompt = list(range(3 * BLOCK_TOKENS + 5))
    fill(cache, first, prompt)
    assert cache.share(second, prompt) == 3 * BLOCK_TOKENS
    assert second.blocks == first.blocks[:3]
    fill(cache, second, [99] * 20)
    assert marks(cache, second) == expected_entries(prompt[: 3 * BLOCK_TOKENS] + [99] * 20)
    # the same tokens after another token are another context
    assert cache.share(third, [7, *prompt]) == 0
    cache.release(first)
    cache.check()
    assert marks(cache, second)[:48] == expected_entries(prompt[:48])
    assert cache.pool.shared_tokens == 3 * BLOCK_TOKENS


def test_released_blocks_are_found_until_they_are_needed() -> None:
    cache = make_cache(4 * BLOCK_TOKENS)
    first = cache.open()
    prompt = list(range(2 * BLOCK_TOKENS))
    fill(cache, first, prompt)
    cache.release(first)
    again = cache.open()
    assert cache.share(again, prompt) == 2 * BLOCK_TOKENS
    cache.release(again)
    other = cache.open()
    fill(cache, other, [1] * (4 * BLOCK_TOKENS))
    assert cache.share(cache.open(), prompt) == 0
    cache.check()


class CacheMachine(RuleBasedStateMachine):
    """Random operations on sequences with common prefixes: no block is lost, counts are right, entries match
    contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(12 * BLOCK_TOKENS)
        self.open_sequences: list[KVSequence] = []

    @rule()
    def open(self) -> None:
        self.open_sequences.append(self.cache.open())

    @rule(data=st.data(), token=st.integers(0, 1), tokens=st.integers(1, 40), share=st.booleans())
    def grow(self, data: st.DataObject, token: int, tokens: int, share: bool) -> None:
        if not self.open_sequences:
            return
        sequence = data.draw(st.sampled_from(self.open_sequences))
        delta = [token] * tokens
        known = self.cache.share(sequence, delta[:-1]) if share else 0
        try:
            fill(self.cache, sequence, delta[known:])
        except ExhaustedError:
            self.cache.trim(sequence)

    @rule(data=st.data(), parents=st.lists(st.integers(-1, 10), max_size=12))
    def verify_tree(self, data: st.DataObject, parents: list[int]) -> None:
        if not self.open_sequences:
            return
        sequence = data.draw(st.sampled_from(self.open_sequences))
        parents = [min(parent, index - 1) for index, parent in enumerate(parents)]
        try:
            self.cache.reserve(sequence, len(parents))
        except ExhaustedError:
            self.cache.trim(sequence)
            return
        paths: list[list[int]] = []
        for index, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else []), index % 2])
            write(self.cache, sequence, sequence.length + index, entry_of([*sequence.tokens, *paths[-1]]))
        self.cache.add_nodes(sequence, [index % 2 for index in range(len(parents))], parents)
        leaf = data.draw(st.integers(-1, len(parents) - 1))
        self.cache.commit(sequence, sequence.node_path(leaf))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.open_sequences:
            index = data.draw(st.integers(0, len(self.open_sequences) - 1))
            self.cache.release(self.open_sequences.pop(index))

    @invariant()
    def sound(self) -> None:
        self.cache.check()
        for sequence in self.open_sequences:
            assert marks(self.cache, sequence) == expected_entries(sequence.tokens)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=30)


def test_sequences_of_different_scopes_share_no_blocks() -> None:
    cache = make_cache(256)
    tokens = list(range(40))
    sequences = {name: cache.open(name) for name in ("alice", "alicf", "")}
    for sequence in sequences.values():
        assert cache.share(sequence, tokens) == 0
        cache.reserve(sequence, len(tokens))
        cache.append(sequence, tokens)
    assert len({block for sequence in sequences.values() for block in sequence.blocks}) == 9
    for name in sequences:
        assert cache.share(cache.open(name), tokens) == 32
    cache.check()
