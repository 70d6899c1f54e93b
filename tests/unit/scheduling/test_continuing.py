"""Requests that another gateway started, deadlines, and requests given to other gateways."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.verdicts import sound_verdicts
from specinfer.errors import ExhaustedError, InvalidInputError, NotFoundError
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.request.statuses import EntryStatus, FinishReason
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.scheduling.scheduler import Scheduler
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.v1 import verifier_pb2

LIMITS = SchedulerLimits(max_batch=3, prefill_chunk=4, kv_capacity_tokens=400)
TOKENS = 50


def scheduler(limits: SchedulerLimits = LIMITS) -> Scheduler:
    return Scheduler(limits, NodeBudget(4, 64))


def request(name: str = "a", prompt: int = 3, new: int = 8, **fields: object) -> GenerationRequest:
    sampling = fields.pop("sampling", GREEDY)
    return GenerationRequest(name, (1,) * prompt, new, sampling, **fields)  # type: ignore[arg-type]


@dataclass
class ScriptedVerifier:
    """A fake verifier: its next token depends on the seed and the whole context; its drafts are right at random."""

    chance: random.Random = field(default_factory=lambda: random.Random(1))
    cached: dict[str, list[int]] = field(default_factory=dict)

    def step(self, s: Scheduler, now: float = 0.0) -> list[StepEntry]:
        entries = s.plan(now)
        for name in s.take_preempted():
            self.cached.pop(name, None)
        trees = {entry.request_id: self._draft(entry) for entry in entries if entry.final}
        verdicts = {e.request_id: self._verify(e, trees.get(e.request_id)) for e in entries}
        s.commit(entries, trees, verdicts, now)
        return entries

    def run(self, s: Scheduler) -> None:
        while self.step(s):
            pass

    def _next(self, state: RequestState, context: list[int]) -> int:
        return random.Random(f"{state.sampling.seed} {context}").randrange(TOKENS)

    def _draft(self, entry: StepEntry) -> TokenTree:
        context = list(entry.state.tokens)
        builder, parent = TreeBuilder(context[-1]), 0
        for _ in range(min(entry.limits.nodes, entry.limits.depth)):
            right = self._next(entry.state, context)
            context.append(right if self.chance.random() < 0.7 else (right + 1) % TOKENS)
            (parent,) = builder.propose_points(parent, [context[-1]], [0.5])
        return builder.build()

    def _verify(self, entry: StepEntry, tree: TokenTree | None) -> Verdict:
        cached = [] if entry.base_len == 0 else self.cached.get(entry.request_id, [])
        if len(cached) != entry.base_len:
            return Verdict(EntryStatus.RESYNC)
        read = len(entry.delta)
        if entry.read_limit:  # a random part of the delta is cached
            read = min(self.chance.randrange(read) + entry.read_limit, read - 1)
        context = self.cached[entry.request_id] = [*cached, *entry.delta[:read]]
        accepted: list[int] = []
        for node in range(1, len(tree) if tree else 0):
            assert tree is not None
            if tree.token_ids[node] != self._next(entry.state, context):
                break
            accepted.append(node)
            context.append(int(tree.token_ids[node]))
        bonus = self._next(entry.state, context)
        return Verdict(EntryStatus.OK, accepted=tuple(accepted), bonus=bonus, cached_len=len(context))


@given(
    steps=st.integers(0, 20),
    prompt=st.integers(1, 12),
    new=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 1.0]),
    draws=st.tuples(st.booleans(), st.booleans()),
    stops=st.frozensets(st.integers(0, TOKENS - 1), max_size=3),
    seed=st.integers(0, 1000),
)
def test_a_request_that_moves_to_another_gateway_has_the_same_tokens(
    steps: int,
    prompt: int,
    new: int,
    temperature: float,
    draws: tuple[bool, bool],
    stops: frozenset[int],
    seed: int,
) -> None:
    """The other gateway may have different speculators (`draws`) and other requests."""
    sampling = Sampling(temperature=temperature, seed=seed)
    asked = request(prompt=prompt, new=new, sampling=sampling, stop_token_ids=stops)
    alone = scheduler()
    undisturbed = alone.submit(asked, 0.0, draws[0])
    ScriptedVerifier().run(alone)

    first, verifier = scheduler(), ScriptedVerifier(random.Random(seed))
    state = first.submit(asked, 100.0, draws[0])
    for _ in range(steps):
        verifier.step(first)
    generated = state.tokens[prompt:]

    second, verifier = scheduler(), ScriptedVerifier(random.Random(seed + 1))
    for index in range(4):
        second.submit(request(f"other{index}", new=5), 3.0)
    moved = second.submit(
        asked, 7.0, draws[1], generated=generated, drawn_for=state.drawn_for, arrived_ago_s=5.0
    )
    assert (moved.queued_at, moved.drawn_for, moved.sampling) == (2.0, state.drawn_for, undisturbed.sampling)
    if moved.finish is None:
        verifier.run(second)
    assert moved.tokens == undisturbed.tokens
    assert moved.finish is undisturbed.finish is not None
    assert second.states.get("a") is None


def test_a_request_that_was_over_already_is_finished_at_once() -> None:
    s = scheduler()
    done = s.submit(request(new=3), 5.0, generated=[7, 8, 9])
    assert (done.finish, done.finished_at, done.new_tokens) == (FinishReason.LENGTH, 5.0, 3)
    stopped = s.submit(request(stop_token_ids=frozenset([9])), 5.0, generated=[7, 9])
    assert stopped.finish is FinishReason.STOP_TOKEN
    assert (s.waiting, s.running, s.plan(5.0)) == (0, 0, [])
    continuing = s.submit(request(stop_token_ids=frozenset([1])), 5.0)
    assert continuing.finish is None, "that is the prompt's last token, not a generated one"


def test_its_first_step_reads_prompt_and_generated_tokens() -> None:
    s, verifier = scheduler(), ScriptedVerifier()
    s.submit(request(prompt=2, new=5), 0.0, generated=[7, 8, 9])
    (first,) = verifier.step(s)
    assert (first.delta, first.read_limit) == ((1, 1, 7, 8, 9), 4)
    (last,) = verifier.step(s)
    assert (last.delta, last.final) == ((9,), True)


def test_it_keeps_its_place_in_the_queue() -> None:
    s = scheduler(SchedulerLimits(max_batch=1))
    s.submit(request("new"), 10.0)
    s.submit(request("moved"), 11.0, arrived_ago_s=4.0)
    s.submit(request("newer"), 11.0)
    s.submit(request("also newer"), 11.0)
    order = []
    while entries := s.plan(12.0):
        order.append(entries[0].request_id)
        s.finish(entries[0].state, FinishReason.LENGTH, 12.0)
    assert order == ["moved", "new", "newer", "also newer"]


def test_dropped_requests_keep_their_state_and_later_verdicts_are_ignored() -> None:
    s = scheduler()
    state = s.submit(request("a", deadline_s=5.0), 0.0)
    waiting = [s.submit(request(name), 0.0) for name in "bcd"]
    verifier = ScriptedVerifier()
    verifier.step(s)
    tokens = list(state.tokens)
    entries = s.plan(0.0)
    assert s.drop("a") is state
    again = s.submit(request("a"), 0.0, generated=tokens[3:])  # submitted again meanwhile
    trees = {entry.request_id: TokenTree.root_only(entry.delta[-1]) for entry in entries}
    cached_lens = {e.request_id: e.base_len + e.max_read for e in entries}
    verdicts = {name: Verdict(EntryStatus.OK, bonus=5, cached_len=n) for name, n in cached_lens.items()}
    moved = s.commit(entries, trees, verdicts, 0.0)
    assert {progress.state.request.request_id for progress in moved} == cached_lens.keys() - {"a"}
    assert state.tokens == again.tokens == tokens
    assert (state.finish, again.verifier_len) == (None, 0)
    assert s.fail([state], "lost", 0.0) == []
    assert s.reap(9.0) == [], "the deadline left with it"
    assert [s.drop("b"), s.drop("d")] == [waiting[0], waiting[2]]
    assert {id(s.drop(name)) for name in list(s.states)} == {id(again), id(waiting[1])}
    assert (s.waiting, s.running, s.states, s.plan(0.0)) == (0, 0, {}, [])
    with pytest.raises(NotFoundError, match="'a'"):
        s.drop("a")


def test_room_for_a_request_depends_on_cache_and_slots() -> None:
    s = scheduler(SchedulerLimits(max_batch=3, kv_capacity_tokens=128))
    asked = request("x", new=20)
    assert s.has_room(asked)
    assert s.has_room(asked, generated=19)
    assert not s.has_room(request("x", new=200)), "not even as the only request"
    s.submit(request("a", prompt=40), 0.0)  # 44 and a block of slack: 64
    assert s.has_room(asked), "3 tokens, a tree and slack: 32"
    assert s.has_room(request("x", prompt=28)), "32 and 16"
    assert not s.has_room(request("x", prompt=28), generated=30), "62 and 16 would not be admitted"
    s.submit(request("b"), 0.0)
    s.plan(0.0)
    assert s.has_room(asked)
    s.submit(request("c"), 0.0)
    assert not s.has_room(asked), "every slot will be used"
    assert s.could_hold(asked)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=8))
def test_a_scheduler_with_room_for_a_request_admits_it(sizes: list[tuple[int, int]]) -> None:
    s = scheduler(SchedulerLimits(max_batch=4, kv_capacity_tokens=256))
    for index, (prompt, generated) in enumerate(sizes):
        asked = request(str(index), prompt=prompt, new=61)
        if s.has_room(asked, generated):
            s.submit(asked, 0.0, generated=[5] * generated)
            s.admit(0.0)
            assert s.waiting == 0
        assert s.running == len(s.states)


def test_deadlines_end_requests_with_their_tokens() -> None:
    s = scheduler(SchedulerLimits(max_batch=2))
    states = {
        "soon": s.submit(request("soon", deadline_s=2.0), 0.0),
        "later": s.submit(request("later", deadline_s=3.0), 0.0),
        "never": s.submit(request("never"), 0.0),
        "moved": s.submit(request("moved", deadline_s=10.0), 1.0, arrived_ago_s=9.0),
    }
    ScriptedVerifier().step(s)
    assert s.reap(1.9) == []
    ended = s.reap(2.0)
    assert {progress.state.request.request_id for progress in ended} == {"soon", "moved"}
    assert all(progress.final and progress.tokens == [] for progress in ended)
    assert states["soon"].finish is states["moved"].finish is FinishReason.DEADLINE
    assert states["moved"].new_tokens > 0, "its tokens stay"
    (late,) = s.reap(3.0)
    assert (late.state, late.state.new_tokens) == (states["later"], 0), "it was still waiting"
    s.submit(request("both", deadline_s=1.0), 3.0)
    s.cancel("both")
    (progress,) = s.reap(99.0)
    assert progress.state.finish is FinishReason.CANCELLED, "once, not twice"
    assert set(s.states) == {"never"}


def test_cancelling_twice_ends_once() -> None:
    s = scheduler()
    s.submit(request("a"), 0.0)
    s.cancel("a")
    s.cancel("a")
    assert len(s.reap(0.0)) == 1
    s.submit(request("b"), 0.0)
    s.cancel("b")
    s.finish(s.states["b"], FinishReason.LENGTH, 0.0)
    assert s.reap(0.0) == []


def test_a_full_queue_gives_a_time_to_retry() -> None:
    s = scheduler(SchedulerLimits(max_batch=1, max_waiting=1))
    for index in range(4):
        s.submit(request(str(index)), 10.0)
        s.plan(10.0)
        s.finish(s.states[str(index)], FinishReason.LENGTH, 10.0)
    s.submit(request("running"), 10.0)
    s.plan(10.0)
    s.submit(request("next"), 10.0)
    s.finish(s.states["running"], FinishReason.LENGTH, 13.0)
    s.plan(13.0)
    s.submit(request("waiting"), 13.0)
    with pytest.raises(ExhaustedError, match="queue full") as caught:
        s.submit(request("refused"), 13.0)
    assert caught.value.retry_after_s == pytest.approx(3.0)
    with pytest.raises(InvalidInputError, match="over the context"):
        s.submit(request("never", prompt=40000), 13.0)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(1, 30), st.integers(1, 30)),
        max_size=12,
    ),
    st.integers(0, 1000),
)
def test_everything_finishes_in_a_cache_that_is_too_small_for_all(
    asked: list[tuple[str, int, int, int]], seed: int
) -> None:
    """Preemption and fair admission must not undo each other forever."""
    s = scheduler(SchedulerLimits(max_batch=6, prefill_chunk=8, kv_capacity_tokens=80))
    verifier = ScriptedVerifier(random.Random(seed))
    states = []
    for index, (caller, priority, prompt, new) in enumerate(asked):
        wanted = request(str(index), prompt, new, caller=caller, priority=priority)
        states.append(s.submit(wanted, 0.0))
    for _ in range(2000):
        if not verifier.step(s):
            break
    assert all(state.finish is FinishReason.LENGTH for state in states)
    assert not s.states


def test_verdicts_that_contradict_the_entry_end_one_request() -> None:
    s = scheduler()
    s.submit(request("a", prompt=1), 0.0)
    (entry,) = s.plan(0.0)
    trees = {"a": TokenTree.root_only(1)}
    wrong = verifier_pb2.Verdict(request_id="a", status=1, bonus_token_id=5, cached_len=7)
    (progress,) = s.commit([entry], trees, sound_verdicts([entry], trees, [wrong], TOKENS), 0.0)
    assert (progress.state.finish, progress.final) == (FinishReason.ERROR, True)
    assert progress.state.error == "the verifier cached 7 tokens instead of 1"
    assert not progress.state.retryable
    assert s.running == 0
