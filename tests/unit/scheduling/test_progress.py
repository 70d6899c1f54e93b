"""Progress of several steps is written as one item per request."""

import json

from hypothesis import given
from hypothesis import strategies as st

from specinfer.scheduling.commit import apply_verdict
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress, StepEntry, VerdictEntry, unite
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.statuses import EntryStatus, FinishReason, LogprobRow
from specinfer.tree import TreeLimits


def state_of(name: str) -> RequestState:
    return RequestState.new(GenerationRequest(name, (5, 6), 100, frozenset()), 0.0, 0, False)


def rows_of(tokens: list[int]) -> list[LogprobRow]:
    return [LogprobRow(-float(token)) for token in tokens]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=3)), max_size=20))
def test_every_request_has_one_item_with_all_its_tokens(steps: list[tuple[str, list[int]]]) -> None:
    states, written = {name: state_of(name) for name in "abc"}, {name: list[int]() for name in "abc"}
    progress = []
    for number, (name, tokens) in enumerate(steps):
        last = name not in [other for other, _ in steps[number + 1 :]]
        progress.append(Progress(states[name], tokens, rows_of(tokens), len(written[name]), last))
        written[name] += tokens
    copies = [(list(item.tokens), list(item.logprobs)) for item in progress]
    united = unite(progress)
    assert [item.request_id for item in united] == list(dict.fromkeys(name for name, _ in steps))
    for item in united:
        assert (item.start, item.tokens, item.final) == (0, written[item.request_id], True)
        assert item.logprobs == rows_of(item.tokens)
    assert [(item.tokens, item.logprobs) for item in progress] == copies, "clients get each step's own"


def test_a_request_that_was_submitted_again_has_its_own_item() -> None:
    """Redis had fewer tokens than this gateway: positions overlap, so the two states get separate items."""
    before, after = state_of("a"), state_of("a")
    progress = [
        *(Progress(before, [7], [], 10, False), Progress(before, [8], [], 11, False)),
        *(Progress(after, [7], [], 10, False), Progress(after, [9], [], 11, False)),
        Progress(after, [4], [], 20, True),
    ]
    assert [(item.start, item.tokens, item.final) for item in unite(progress)] == [
        *((10, [7, 8], False), (10, [7, 9], False)),
        (20, [4], True),
    ]


def test_a_prompt_that_is_read_again_counts_its_cached_tokens_once() -> None:
    """After a restart of the verifier or a preemption, tokens that were read before are in the cache."""
    state = RequestState.new(GenerationRequest("a", tuple(range(100)), 100, frozenset()), 0.0, 0, False)

    def read(base: int, tokens: int, cached: int) -> None:
        entry = StepEntry(state, base, tuple(range(base, base + tokens)), False, TreeLimits(0, 0), 0)
        verdict = VerdictEntry(EntryStatus.OK, cached_len=base + tokens, cached_tokens=cached)
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
