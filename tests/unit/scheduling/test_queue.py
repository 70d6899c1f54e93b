"""Callers share the verifier fairly: the rules of `specinfer.scheduling.queue` for any order of events."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from specinfer.errors import ExhaustedError
from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits
from specinfer.scheduling.queue import WaitingQueue
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.scheduling.scheduler import Scheduler

CALLERS = st.sampled_from(["a", "b", "c", "d"])


def request(name: str, caller: str, priority: int = 0) -> GenerationRequest:
    return GenerationRequest(name, (1,), 8, GREEDY, priority=priority, caller=caller)


def scheduler(max_batch: int, max_waiting: int = 2000, capacity: int = 10**6) -> Scheduler:
    limits = SchedulerLimits(max_batch, max_waiting, kv_capacity_tokens=capacity)
    return Scheduler(limits, NodeBudget(4, 64))


def running(s: Scheduler) -> list[RequestState]:
    return [entry.state for entry in s.plan(0.0)]


def finish_first(s: Scheduler, caller: str | None = None) -> None:
    """End the request that has run longest, of `caller` if given."""
    state = next(state for state in running(s) if caller in (None, state.request.caller))
    s.finish(state, FinishReason.LENGTH, 0.0)


class FairSharing(RuleBasedStateMachine):
    """Requests are submitted, admitted, finished, preempted, and cancelled while waiting, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue()
        self.waiting: list[RequestState] = []
        self.running: list[RequestState] = []
        self.served: list[str] = []
        self.submitted = 0

    @initialize(callers=st.lists(CALLERS, max_size=12))
    def begin(self, callers: list[str]) -> None:
        for caller in callers:
            self.submit(caller, 0, 0)

    @rule(caller=CALLERS, priority=st.integers(-1, 1), ago=st.integers(0, 3))
    def submit(self, caller: str, priority: int, ago: int) -> None:
        asked = request(str(self.submitted), caller, priority)
        state = RequestState.new(asked, -float(ago), self.submitted, False)
        self.submitted += 1
        self.waiting.append(state)
        self.queue.push(state)

    @rule()
    def admit(self) -> None:
        state = self.queue.first()
        if state is None:
            assert not self.waiting
            return
        shares = Counter(other.request.caller for other in self.running)
        top = max(other.request.priority for other in self.waiting)
        rivals = [other for other in self.waiting if other.request.priority == top]
        fewest = min(shares[other.request.caller] for other in rivals)
        assert state in rivals, "a higher priority waits"
        assert shares[state.request.caller] == fewest, "a caller with fewer running requests waits"
        equals = {other.request.caller for other in rivals if shares[other.request.caller] == fewest}
        latest = {caller: len(self.served) - self.served[::-1].index(caller) for caller in set(self.served)}
        oldest = min(latest.get(caller, 0) for caller in equals)
        assert latest.get(state.request.caller, 0) == oldest, "another was served less recently"
        places = [other.place for other in rivals if other.request.caller == state.request.caller]
        assert state.place == min(places), "another of the same caller arrived earlier"
        self.served.append(state.request.caller)
        self.queue.admit(state)
        self.waiting.remove(state)
        self.running.append(state)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), preempted=st.booleans())
    def leave(self, data: st.DataObject, preempted: bool) -> None:
        state = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.queue.leave(state)
        if preempted:
            self.waiting.append(state)
            self.queue.push(state)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        state = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.queue.remove(state)

    def teardown(self) -> None:
        assert sorted(s.place for s in self.queue) == sorted(s.place for s in self.waiting)
        while self.waiting:
            self.admit()
        assert not self.queue._by_caller
        assert not len(self.queue._callers)


TestFairSharing = FairSharing.TestCase


@given(
    st.integers(1, 12),
    st.lists(CALLERS, min_size=2, max_size=4, unique=True),
    st.lists(CALLERS, max_size=30),
)
def test_callers_that_always_wait_differ_by_one_running_request_at_most(
    max_batch: int, callers: list[str], finishing: list[str]
) -> None:
    """Requests of any caller may finish, in any order."""
    s = scheduler(max_batch)
    for caller in callers:
        for index in range(max_batch + len(finishing)):  # no caller runs out of requests
            s.submit(request(f"{caller}{index}", caller), 0.0)
    for caller in finishing:
        if any(state.request.caller == caller for state in running(s)):
            finish_first(s, caller)
        shares = Counter(state.request.caller for state in running(s))
        counts = [shares[name] for name in callers]
        assert sum(counts) == max_batch
        assert max(counts) - min(counts) <= 1


def test_a_caller_without_running_requests_takes_one_place_of_a_caller_with_several() -> None:
    s = scheduler(4)
    for index in range(1000):
        s.submit(request(f"flood{index}", "greedy"), 0.0)
    assert len(running(s)) == 4
    for index in range(5):
        s.submit(request(f"single{index}", "modest"), 1.0)
        s.submit(request(f"more{index}", "modest"), 1.0)
        shares = Counter(state.request.caller for state in running(s))
        assert shares == {"greedy": 3, "modest": 1}, "its second request waits for a place"
        (preempted,) = s.take_preempted()
        assert preempted.startswith("flood")
        finish_first(s, "modest")
        finish_first(s, "modest")
        assert len(running(s)) == 4, "no place stays free"
    s.submit(request("last", "third", priority=-1), 1.0)
    assert "last" not in {state.request.request_id for state in running(s)}, "its priority is lower"
    assert not s.take_preempted()


def test_callers_with_one_running_request_each_keep_it() -> None:
    s = scheduler(2)
    for name in "abc":
        s.submit(request(name, name), 0.0)
    assert [state.request.caller for state in running(s)] == ["a", "b"]
    assert not s.take_preempted()


def test_a_thousand_waiting_requests_of_one_caller_delay_others_by_one_slot() -> None:
    max_batch = 1
    s = scheduler(max_batch)
    for index in range(1000):
        s.submit(request(f"flood{index}", "greedy"), 0.0)
    assert len(running(s)) == max_batch
    for index in range(5):
        s.submit(request(f"single{index}", "modest"), 1.0)
        assert {state.request.caller for state in running(s)} == {"greedy"}, "no slot is free"
        finish_first(s)
        newest = running(s)[-1]
        assert newest.request.request_id == f"single{index}"
        finish_first(s, "modest")
        assert len(running(s)) == max_batch


def test_callers_that_always_wait_alternate_in_a_single_slot() -> None:
    s = scheduler(max_batch=1)
    for index in range(4):
        s.submit(request(f"a{index}", "a"), 0.0)
    order = []
    for index in range(8):
        if index < 4:
            s.submit(request(f"b{index}", "b"), 0.0)  # submits again at once, each time
        (state,) = running(s)
        order.append(state.request.caller)
        s.finish(state, FinishReason.LENGTH, 0.0)
    assert "".join(order) == "abababab"


def test_if_the_cache_is_full_the_caller_with_more_requests_is_preempted() -> None:
    """The preempted request is not the latest arrival, which is the only one of its caller."""
    s = scheduler(max_batch=4, capacity=160)
    states = {name: s.submit(request(name, name[0]), 0.0) for name in ("a1", "a2", "a3", "b1")}
    assert len(running(s)) == 4
    for state in states.values():
        state.tokens += [1] * 40  # 3 blocks each with its tree: 192 of 160
    assert {state.request.request_id for state in running(s)} == {"a1", "a2", "b1"}
    assert s.take_preempted() == ["a3"]


def test_the_earliest_of_the_highest_priority_is_never_preempted() -> None:
    s = scheduler(max_batch=4, capacity=160)
    states = [
        s.submit(request("old", "a"), 0.0),
        s.submit(request("first", "a", priority=1), 1.0),
        s.submit(request("second", "a", priority=1), 2.0),
        s.submit(request("other", "b", priority=1), 3.0),
    ]
    assert len(running(s)) == 4
    for state in states:
        state.tokens += [1] * 120  # only one fits
    assert [state.request.request_id for state in running(s)] == ["first"]
    assert s.take_preempted() == ["old", "second", "other"]


@pytest.mark.parametrize(
    ("grown", "preempted"),
    [
        pytest.param(
            {"first": 0, "long": 64, "short": 32, "late": 64}, ["short"], id="the shortest that is enough"
        ),
        pytest.param(
            {"first": 0, "long": 96, "short": 80, "late": 80}, ["long", "late"], id="none is enough alone"
        ),
        pytest.param(
            {"first": 64, "long": 64, "short": 64, "late": 64}, ["late", "short"], id="equal: the latest"
        ),
    ],
)
def test_the_request_that_is_read_again_fastest_is_preempted(
    grown: dict[str, int], preempted: list[str]
) -> None:
    s = scheduler(max_batch=4, capacity=192)
    states = {name: s.submit(request(name, name), float(at)) for at, name in enumerate(grown)}
    assert len(running(s)) == 4
    for name, state in states.items():
        state.tokens += [1] * grown[name]
        state.verifier_len = len(state.tokens) - 1
    running(s)
    assert s.take_preempted() == preempted


def test_one_caller_cannot_fill_the_queue() -> None:
    s = scheduler(max_batch=1, max_waiting=100)

    def fill(caller: str) -> str:
        for index in range(101):
            try:
                s.submit(request(f"{caller}{index}", caller), 0.0)
            except ExhaustedError as error:
                return str(error)
        return "never full"

    full = "queue full for caller {!r}: {} requests of the caller are waiting, the maximum for {} free places"
    assert fill("greedy") == full.format("greedy", 80, 20)
    assert fill("second") == full.format("second", 16, 4)
    s.submit(request("single", "modest"), 0.0)


def test_without_keys_all_requests_share_the_queue() -> None:
    s = scheduler(max_batch=1, max_waiting=100)
    for index in range(100):
        s.submit(request(str(index), ""), 0.0)
    with pytest.raises(ExhaustedError, match="queue full"):
        s.submit(request("last", ""), 0.0)


def test_callers_share_the_chunk_in_which_prompts_are_read() -> None:
    limits = SchedulerLimits(max_batch=8, prefill_chunk=8, kv_capacity_tokens=10**6)
    s = Scheduler(limits, NodeBudget(4, 64))

    def submit(name: str, caller: str, prompt: int, priority: int = 0) -> None:
        asked = GenerationRequest(name, (1,) * prompt, 8, GREEDY, caller=caller, priority=priority)
        s.submit(asked, 0.0)

    def read() -> dict[str, int]:
        entries = s.plan(0.0)
        for entry in entries:
            entry.state.verifier_len += entry.max_read - entry.final  # a token stays to be sent
        return {entry.request_id: entry.max_read for entry in entries if entry.max_read > 1}

    for index in range(3):
        submit(f"long{index}", "a", 20)
    assert read() == {"long0": 8}
    submit("short", "b", 6)
    assert read() == {"long0": 4, "short": 4}
    assert read() == {"long0": 6, "short": 2}
    assert read() == {"long0": 2, "long1": 6}
    submit("urgent", "a", 5, priority=1)
    assert read() == {"urgent": 5, "long1": 3}
