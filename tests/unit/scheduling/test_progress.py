"""Progress of several steps is written as one item."""

import json

from hypothesis import given
from hypothesis import strategies as st

from specinfer.request.statuses import EntryStatus, FinishReason, LogprobRow
from specinfer.request.verdict import Verdict
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress, StepEntry, apply_verdict, united
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.tree import TreeLimits


def state_of(name: str) -> RequestState:
    return RequestState.new(GenerationRequest(name, (5, 6), 100, frozenset()), 0.0, 0, False)


def rows_of(tokens: list[int]) -> list[LogprobRow]:
    return [LogprobRow(-float(token)) for token in tokens]


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=20))
def test_steps_of_a_run_become_one_item_with_all_their_tokens(steps: list[list[int]]) -> None:
    state, written = state_of("a"), list[int]()
    items = []
    for number, tokens in enumerate(steps):
        items.append(Progress(state, tokens, rows_of(tokens), len(written), number == len(steps) - 1))
        written += tokens
    copies = [(list(item.tokens), list(item.logprobs)) for item in items]
    item = united(items)
    assert (item.state, item.start, item.tokens, item.final) == (state, 0, written, True)
    assert item.logprobs == rows_of(item.tokens)
    assert [(item.tokens, item.logprobs) for item in items] == copies, "clients get each step's own"


def test_a_prompt_that_is_read_again_counts_its_cached_tokens_once() -> None:
    """After a restart of the verifier or a preemption, tokens that were read before are in the cache."""
    state = RequestState.new(GenerationRequest("a", tuple(range(100)), 100, frozenset()), 0.0, 0, False)

    def read(base: int, tokens: int, cached: int) -> None:
        entry = StepEntry(state, base, tuple(range(base, base + tokens)), False, TreeLimits(0, 0), 0)
        verdict = Verdict(EntryStatus.OK, cached_len=base + tokens, cached_tokens=cached)
        assert apply_verdict(entry, None, verdict, 0.0) is None

    read(0, 40, 32)
    read(40, 40, 16)
    assert state.cached_tokens == 48
    read(0, 40, 16)
    assert state.cached_tokens == 16


def test_an_ending_is_read_as_earlier_and_later_versions_write_it() -> None:
    """Gateways of two versions share Redis during an upgrade."""
    ending = Ending(FinishReason.LENGTH, prompt_tokens=7, cached_tokens=0)
    values = json.loads(ending.to_json())
    assert Ending.from_json(json.dumps({**values, "unknown": 1})) == ending
    del values["cached_tokens"]
    assert Ending.from_json(json.dumps(values)) == ending
