"""The scheduler as a pure state machine, and node budgets."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.limits import longest_request
from specinfer.errors import AlreadyExistsError, ExhaustedError, InvalidInputError, NotFoundError
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus, FinishReason
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import MAX_DEFERRED_S, StepEntry
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits, split_budget
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.scheduling.scheduler import Scheduler
from specinfer.tree import TokenTree, TreeWorth
from specinfer.v1 import verifier_pb2
from tests.support.trees import CAT, RAN, SAT, THE, example_tree

LIMITS = SchedulerLimits(max_batch=3, max_waiting=2, prefill_chunk=4, tree_depth=4, kv_capacity_tokens=400)


def request(name: str, prompt: int = 1, new: int = 8, **fields: object) -> GenerationRequest:
    sampling = Sampling(temperature=0)
    return GenerationRequest(name, (THE,) * prompt, new, sampling, **fields)  # type: ignore[arg-type]


def scheduler(limits: SchedulerLimits = LIMITS, nodes: int = 4) -> Scheduler:
    return Scheduler(limits, NodeBudget(nodes, 64))


def answer(entry: StepEntry, bonus: int, accepted: tuple[int, ...] = ()) -> Verdict:
    cached_len = entry.base_len + entry.max_read + len(accepted)
    return Verdict(EntryStatus.OK, accepted=accepted, bonus=bonus, cached_len=cached_len)


def step(s: Scheduler, bonus: int = CAT) -> list[StepEntry]:
    """Plan a step, and answer every final entry with one token."""
    entries = s.plan(0.0)
    trees = {e.request_id: TokenTree.root_only(e.delta[-1]) for e in entries if e.final}
    s.commit(entries, trees, {e.request_id: answer(e, bonus) for e in entries}, 0.0)
    return entries


def test_a_step_reads_whole_chunks_while_no_request_decodes() -> None:
    budget = NodeBudget(0, 0, pass_seconds=(2.0, 2.5, 3.0, 4.0, 5.0, 6.0))
    s = Scheduler(replace(LIMITS, prefill_chunk=100), budget)
    s.submit(request("a", prompt=101), 0.0)
    assert [e.max_read for e in step(s)] == [100]
    assert [e.max_read for e in step(s)] == [1]
    s.submit(request("b", prompt=10), 0.0)
    assert [[e.max_read for e in step(s)] for _ in range(4)] == [[1, 3], [1, 3], [1, 3], [1, 1]]


def test_a_prompt_is_read_in_chunks_while_other_requests_decode() -> None:
    s = scheduler()
    s.submit(request("short"), 0.0)
    step(s)
    s.submit(request("long", prompt=10), 0.0)
    deltas = [{e.request_id: (e.max_read, e.final) for e in step(s)} for _ in range(4)]
    assert deltas == [
        {"short": (1, True), "long": (4, False)},
        {"short": (1, True), "long": (4, False)},
        {"short": (1, True), "long": (2, True)},
        {"short": (1, True), "long": (1, True)},
    ]


def test_a_prompt_s_first_entry_has_all_that_may_be_cached() -> None:
    """Cached tokens do not count toward the chunk."""
    s = scheduler()
    s.submit(request("long", prompt=90), 0.0)
    (entry,) = s.plan(0.0)
    assert (len(entry.delta), entry.read_limit, entry.final) == (90, 4, False)
    s.commit([entry], {}, {"long": Verdict(EntryStatus.OK, cached_len=84, cached_tokens=80)}, 0.0)
    (entry,) = s.plan(0.0)
    assert (entry.base_len, len(entry.delta), entry.read_limit, entry.final) == (84, 4, 0, False)
    s.commit([entry], {}, {"long": Verdict(EntryStatus.OK, cached_len=88)}, 0.0)
    (entry,) = s.plan(0.0)
    assert (len(entry.delta), entry.final, entry.state.cached_tokens) == (2, True, 80)


def test_a_prompt_s_entries_have_all_that_may_be_cached_until_some_was_computed() -> None:
    """This includes generated tokens, as when a preempted request is read again."""
    s = scheduler()
    s.submit(request("long", prompt=80), 0.0, generated=[CAT] * 7)
    for base in (0, 32):
        (entry,) = s.plan(0.0)
        assert (entry.base_len, len(entry.delta), entry.read_limit, entry.final) == (
            base,
            87 - base,
            4,
            False,
        )
        found = Verdict(EntryStatus.OK, cached_len=base + 32, cached_tokens=32)
        s.commit([entry], {}, {"long": found}, 0.0)
    (entry,) = s.plan(0.0)
    assert (entry.base_len, len(entry.delta), entry.read_limit) == (64, 23, 4)
    s.commit([entry], {}, {"long": Verdict(EntryStatus.OK, cached_len=68)}, 0.0)
    (entry,) = s.plan(0.0)
    assert (entry.base_len, len(entry.delta), entry.read_limit) == (68, 4, 0)


def test_a_chunk_smaller_than_the_callers_goes_to_the_earliest_prompt() -> None:
    """Longer prompts of other callers, however many, do not delay it."""
    s = scheduler(replace(LIMITS, prefill_chunk=1, max_waiting=4))
    s.submit(request("short", prompt=4, caller="a"), 0.0)
    for number in range(2):
        s.submit(request(f"long {number}", prompt=50, caller="b"), 0.0)
    assert [[e.request_id for e in step(s)] for _ in range(3)] == [["short"]] * 3


def test_two_prompts_share_one_chunk_per_step() -> None:
    s = scheduler()
    s.submit(request("a", prompt=6), 0.0)
    s.submit(request("b", prompt=6), 0.0)
    lengths = [{e.request_id: e.max_read for e in step(s)} for _ in range(3)]
    assert lengths[0] == {"a": 4}
    assert lengths[1] == {"a": 2, "b": 2}
    assert lengths[2] == {"a": 1, "b": 4}
    assert all(sum(n for n in row.values() if n > 1) <= 4 for row in lengths)


def test_prompts_are_read_even_if_a_step_has_room_for_one_token_per_request() -> None:
    """The room of a step minus one token per prompt would be zero, and no prompt would ever be read."""
    s = scheduler(replace(LIMITS, max_step_tokens=3, max_waiting=3))
    for name in "abc":
        s.submit(request(name, prompt=5, new=2), 0.0)
    for _ in range(20):
        assert sum(entry.max_read for entry in step(s)) <= 3
    assert not s.states, "all of them end"


def test_accepted_tokens_and_bonus_are_committed() -> None:
    s = scheduler()
    state = s.submit(request("a"), 0.0)
    (entry,) = s.plan(0.0)
    verdict = answer(entry, RAN, accepted=(1, 2))
    (progress,) = s.commit([entry], {"a": example_tree()}, {"a": verdict}, 1.5)
    assert progress.tokens == [CAT, SAT, RAN]
    assert state.tokens == [THE, CAT, SAT, RAN]
    assert (state.verifier_len, state.first_token_at) == (3, 1.5)
    assert (state.stats.steps, state.stats.drafted, state.stats.accepted) == (1, 4, 2)
    assert state.stats.histogram == [0, 0, 1]
    assert state.stats.speculators[0].wins == 1
    (following,) = s.plan(2.0)
    assert (following.base_len, following.delta) == (3, (RAN,))


def test_depth_never_crosses_the_maximum_length() -> None:
    s = scheduler(nodes=16)
    s.submit(request("a", new=3), 0.0)
    depths = [step(s)[0].limits for _ in range(3)]
    assert [(limits.nodes, limits.depth) for limits in depths] == [(16, 2), (16, 1), (0, 0)]
    assert s.plan(0.0) == []


def test_tokens_beyond_a_stop_are_dropped() -> None:
    s = scheduler()
    state = s.submit(request("a", stop_token_ids=frozenset([SAT])), 0.0)
    (entry,) = s.plan(0.0)
    (progress,) = s.commit([entry], {"a": example_tree()}, {"a": answer(entry, RAN, (1, 2))}, 0.0)
    assert progress.tokens == [CAT, SAT]
    assert state.finish is FinishReason.STOP_TOKEN
    assert s.running == 0


def test_resync_sends_the_whole_prefix_again() -> None:
    s = scheduler()
    s.submit(request("a"), 0.0)
    step(s)
    step(s)
    (entry,) = s.plan(0.0)
    assert entry.base_len == 2
    assert s.commit([entry], {}, {"a": Verdict(EntryStatus.RESYNC)}, 0.0) == []
    (again,) = s.plan(0.0)
    assert (again.base_len, again.delta) == (0, (THE, CAT, CAT))


def test_an_error_ends_one_request() -> None:
    s = scheduler()
    s.submit(request("a"), 0.0)
    s.submit(request("b"), 0.0)
    entries = s.plan(0.0)
    verdicts = {"a": Verdict(EntryStatus.ERROR, "broken"), "b": answer(entries[1], CAT)}
    trees = {name: TokenTree.root_only(THE) for name in ("a", "b")}
    first, second = s.commit(entries, trees, verdicts, 0.0)
    assert (first.state.finish, first.state.error) == (FinishReason.ERROR, "broken")
    assert second.tokens == [CAT]
    assert s.running == 1


def test_a_full_verifier_is_tried_again_but_not_for_ever() -> None:
    s = scheduler()
    state = s.submit(request("a"), 0.0)
    full = Verdict(EntryStatus.EXHAUSTED, "full")
    for step in range(1000):
        now = MAX_DEFERRED_S * step / 1000
        assert s.commit(s.plan(now), {}, {"a": full}, now) == []
    s.commit(s.plan(MAX_DEFERRED_S), {}, {"a": full}, MAX_DEFERRED_S + 0.1)
    assert state.finish is FinishReason.ERROR


def test_time_in_which_the_process_was_stopped_does_not_count_as_deferral() -> None:
    """The machine slept, or the verifier was unavailable for minutes: the next step is tried."""
    s = scheduler()
    state = s.submit(request("a"), 0.0)
    full = Verdict(EntryStatus.EXHAUSTED, "full")
    for now in (0.0, 1000.0, 1001.0, 2000.0):
        assert s.commit(s.plan(now), {}, {"a": full}, now) == []
    assert state.finish is None


def test_admission_by_priority_then_arrival() -> None:
    s = Scheduler(SchedulerLimits(max_batch=1, kv_capacity_tokens=400), NodeBudget(4, 64))
    for name, priority in (("low", -1), ("a", 0), ("high", 3), ("b", 0)):
        s.submit(request(name, new=1, priority=priority), 0.0)
    assert [step(s)[0].request_id for _ in range(4)] == ["high", "a", "b", "low"]


def test_admission_waits_for_room_in_the_cache() -> None:
    limits = SchedulerLimits(max_batch=8, kv_capacity_tokens=64)
    s = scheduler(limits)
    for name in "abc":  # 1 + 4 tokens now are a block of 16, and one of slack
        s.submit(request(name, new=20), 0.0)
    assert [e.request_id for e in s.plan(0.0)] == ["a", "b"]
    with pytest.raises(InvalidInputError, match=r"prompt \+ max_new_tokens = "):
        s.submit(request("d", prompt=60), 0.0)


@given(
    st.integers(16, 100), st.integers(1, 100), st.integers(1, 100), st.integers(0, 40), st.integers(8, 120)
)
def test_trees_do_not_change_which_requests_are_accepted(
    capacity: int, prompt: int, new: int, nodes: int, context: int
) -> None:
    """Requests that fit into cache and context are accepted, and their trees do not exceed them."""
    limits = SchedulerLimits(max_context_len=context, kv_capacity_tokens=capacity, prefill_chunk=64)
    description = verifier_pb2.DescribeVerifierReply(
        max_context_len=context, kv_capacity_tokens=capacity, kv_block_tokens=limits.kv_block_tokens
    )
    fits = prompt + new <= longest_request(description)
    for speculation in Speculation:
        s = scheduler(limits, nodes)
        new_request = request("a", prompt, new, speculation=speculation)
        assert s.could_hold(new_request) == fits
        if not fits:
            bound = "context of" if prompt + new > context else "cache of"
            with pytest.raises(InvalidInputError, match=f"over the {bound}"):
                s.submit(new_request, 0.0)
            continue
        s.submit(new_request, 0.0)
        for entry in (entry for _ in range(prompt + new) for entry in step(s)):
            cached = entry.base_len + entry.max_read + entry.limits.nodes
            assert cached <= capacity
        assert not s.states, "it ends"


def test_requests_that_outgrow_the_cache_preempt_the_least_and_all_finish() -> None:
    limits = SchedulerLimits(max_batch=8, kv_capacity_tokens=64)
    s = scheduler(limits, nodes=2)
    states = {n: s.submit(request(n, new=40, priority=p), 0.0) for n, p in (("a", 0), ("b", 1), ("c", 0))}
    preempted: list[str] = []
    for _ in range(300):
        entries = step(s)
        gone = s.take_preempted()
        preempted += gone
        assert not {e.request_id for e in entries} & set(gone)
        assert sum(-(-(len(e.state.tokens) + 1) // 16) * 16 for e in entries) <= 64
    assert preempted, "three requests of 43 tokens do not fit into 64"
    assert "b" not in preempted, "the highest priority is never preempted"
    assert all(state.finish is FinishReason.LENGTH for state in states.values())
    assert all(state.new_tokens == 40 for state in states.values())


def test_a_full_queue_and_a_duplicate_are_refused() -> None:
    s = scheduler()
    s.submit(request("a"), 0.0)
    with pytest.raises(AlreadyExistsError, match="'a'"):
        s.submit(request("a"), 0.0)
    s.submit(request("b"), 0.0)
    with pytest.raises(ExhaustedError, match="queue full"):
        s.submit(request("c"), 0.0)


def test_cancelling_ends_waiting_and_running_requests() -> None:
    s = Scheduler(SchedulerLimits(max_batch=1, kv_capacity_tokens=400), NodeBudget(4, 64))
    s.submit(request("a"), 0.0)
    s.submit(request("b"), 0.0)
    step(s)
    s.cancel("a")
    s.cancel("b")
    assert {p.state.request.request_id for p in s.reap(1.0)} == {"a", "b"}
    assert s.plan(1.0) == []
    with pytest.raises(NotFoundError, match="'a'"):
        s.cancel("a")


def test_a_verdict_for_a_request_cancelled_meanwhile_is_ignored() -> None:
    s = scheduler()
    state = s.submit(request("a"), 0.0)
    (entry,) = s.plan(0.0)
    s.cancel("a")
    s.reap(0.0)
    assert s.commit([entry], {"a": example_tree()}, {"a": answer(entry, CAT)}, 0.0) == []
    assert state.tokens == [THE]


def test_speculation_off_and_sequence_get_their_limits() -> None:
    s = scheduler(nodes=9)
    s.submit(request("off", speculation=Speculation.OFF), 0.0)
    s.submit(request("seq", speculation=Speculation.SEQUENCE), 0.0)
    off, sequence = s.plan(0.0)
    assert off.limits.empty
    assert not off.drafts
    assert (sequence.limits.nodes, sequence.limits.width) == (5, 1)


def test_limits_of_trees_include_probability_and_speed() -> None:
    s = scheduler()
    s.submit(request("a"), 0.0)
    (entry,) = s.plan(0.0, max_nodes=4, worth=TreeWorth(0.25, 80.0))
    assert (entry.limits.nodes, entry.limits.min_path_probability, entry.limits.tokens_per_second) == (
        4,
        0.25,
        80.0,
    )


def test_bad_requests_are_named() -> None:
    with pytest.raises(InvalidInputError, match="stop_strings = 17"):
        request("a", stop_strings=("x",) * 17)
    with pytest.raises(InvalidInputError, match=r"max_new_tokens = '1 \+ 8':"):
        request("a").check_against(vocab_size=10, max_context_len=8)


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 100), st.integers(0, 30))
def test_budget_is_never_exceeded_nor_wasted(wanted: list[int], per_step: int, per_request: int) -> None:
    shares = split_budget(NodeBudget(per_request, per_step), wanted)
    capped = [min(w, per_request) for w in wanted]
    assert sum(shares) <= per_step
    assert all(0 <= share <= most for share, most in zip(shares, capped, strict=True))
    if sum(capped) <= per_step:
        assert shares == capped
    elif wanted:
        assert per_step - sum(shares) < len(wanted), "unused although a request wanted more"


def test_state_counts_what_remains() -> None:
    asked = request("a", prompt=2, new=5)
    state = RequestState(asked, 0.0, 0, asked.sampling, [THE, THE, CAT])
    assert (state.new_tokens, state.remaining) == (1, 4)
