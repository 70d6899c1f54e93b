"""A host repeats a plan for several steps: tokens equal those of single steps; it stops when the plan changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specinfer.drafters import DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.engine.host import Grant, Host, HostPlan, HostStep
from specinfer.engine.local_pool import LocalPool
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob
from tests.support.oracle import first, greedy
from tests.support.system import VOCABULARY, ScriptedDrafter
from tests.support.tiny_models import runner_of, tiny_transformers

PROMPTS = [[5, 17, 3, 88, 41], [9, 8, 7, 30]]
FOREVER = 1e9
NO_TREE = TreeLimits(0, 0)


def host_of(*drafters: Any, kv_tokens: int = 2048, clock: Callable[[], float] = lambda: 0.0) -> Host:
    """Return a host of the tiny model with a fake clock, which stands still by default."""
    runner = runner_of(tiny_transformers("llama"), kv_tokens=kv_tokens)
    groups = [(SpeculatorEngine([drafter]), [f"drafter {place}"]) for place, drafter in enumerate(drafters)]
    pool = LocalPool(groups, runner.config.hidden_size, VOCABULARY)
    return Host(pool, VerifierEngine(runner, limits=EngineLimits(max_context_len=512)), clock=clock)


def request(prompt: Sequence[int], name: str = "a", max_new: int = 100, **fields: Any) -> RequestState:
    asked = GenerationRequest(name, tuple(prompt), max_new, Sampling(temperature=0.0), **fields)
    return RequestState.new(asked, 0.0, 0, False)


def begin(host: Host, states: Sequence[RequestState], nodes: int = 0, drafters: int = 0) -> HostPlan:
    """Read the prompts; return the plan for the steps after them, with trees of `nodes` nodes."""
    entries = [StepEntry(state, 0, tuple(state.tokens), True, NO_TREE, 0) for state in states]
    host.run(HostPlan(entries, frozenset(), lambda *_: True), Grant())
    limits = TreeLimits(nodes, nodes) if nodes else NO_TREE
    following = [
        StepEntry(state, state.verifier_len, (state.tokens[-1],), True, limits, state.remaining - 1)
        for state in states
    ]
    return HostPlan(following, frozenset(range(drafters)), lambda *_: True)


def _only_a_root(job: DraftJob) -> TokenTree:
    return TokenTree.root_only(job.context[-1])


def answers(states: Sequence[RequestState]) -> list[list[int]]:
    return [state.tokens[len(state.request.prompt) :] for state in states]


def assert_greedy(states: Sequence[RequestState]) -> None:
    for state, answer in zip(states, answers(states), strict=True):
        assert answer == greedy(state.request.prompt, len(answer))


@pytest.mark.parametrize("nodes", [0, 3])
def test_tokens_of_a_grant_are_those_of_plain_decoding(nodes: int) -> None:
    host = host_of(ScriptedDrafter(first(nodes)))
    states = [request(prompt, str(place)) for place, prompt in enumerate(PROMPTS)]
    steps = host.run(begin(host, states, nodes, 1), Grant(7, FOREVER))
    host.conclude(steps)
    assert len(steps) == 7
    assert [len(answer) for answer in answers(states)] == [1 + 7 * (1 + nodes)] * 2, "every guess is right"
    assert_greedy(states)


def test_a_tree_never_exceeds_the_remaining_tokens_of_the_request() -> None:
    state = request(PROMPTS[0], max_new=12)
    host = host_of(ScriptedDrafter(first(5)))
    steps = host.run(begin(host, [state], 5, 1), Grant(50, FOREVER))
    assert answers([state]) == [greedy(PROMPTS[0], 12)]
    assert [len(step.trees["a"]) - 1 for step in steps] == [5, 4], (
        "one token more than the tree is the verifier's"
    )


@pytest.mark.parametrize("drafters", [0, 1])
def test_it_ends_with_the_first_request_that_ends(drafters: int) -> None:
    text = greedy(PROMPTS[0], 40)
    stop = next(token for token in text[6:] if token not in text[:6])
    states = [request(PROMPTS[0], "a", stop_token_ids=frozenset([stop])), request(PROMPTS[1], "b")]
    host = host_of(*[ScriptedDrafter(first(2))] * drafters)
    steps = host.run(begin(host, states, 2 * drafters, drafters), Grant(50, FOREVER))
    assert answers(states)[0] == text[: text.index(stop) + 1]
    assert [step.verdicts["b"].status for step in steps] == [EntryStatus.OK] * len(steps)
    assert_greedy(states)
    assert len(steps) < 50


def test_it_ends_when_the_cache_is_full() -> None:
    state = request(PROMPTS[0])
    host = host_of(kv_tokens=32)
    steps = host.run(begin(host, [state]), Grant(50, FOREVER))
    assert [step.verdicts["a"].status for step in steps[:-1]] == [EntryStatus.OK] * (len(steps) - 1)
    assert steps[-1].verdicts["a"].status is EntryStatus.EXHAUSTED
    assert_greedy([state])


def test_it_ends_if_the_verifier_lacks_the_context() -> None:
    state = request(PROMPTS[0])
    host = host_of()
    plan = begin(host, [state])
    host.verifier.release(["a"])
    (step,) = host.run(plan, Grant(50, FOREVER))
    assert step.verdicts["a"].status is EntryStatus.RESYNC
    assert len(answers([state])[0]) == 1


def test_it_ends_when_other_work_waits() -> None:
    state, looks = request(PROMPTS[0]), list[int]()

    def waiting() -> bool:
        looks.append(len(looks))
        return len(looks) == 3

    host = host_of()
    assert len(host.run(begin(host, [state]), Grant(50, FOREVER), waiting)) == 3


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 1), (6.5, 1), (7.5, 2), (11.5, 2), (12.5, 3)])
def test_no_step_starts_that_would_end_far_beyond_the_limit(seconds: float, steps: int) -> None:
    """The clock advances by one at each reading. A step starts only if half of the previous step's time is left."""
    ticks = iter(range(10**6))
    host, state = host_of(clock=lambda: 1.0 * next(ticks)), request(PROMPTS[0])
    assert len(host.run(begin(host, [state]), Grant(50, seconds))) == steps


def test_a_deferred_step_uses_its_drafts_again() -> None:
    seen: list[HostStep] = []
    drafter = ScriptedDrafter(first(2))
    host = host_of(drafter)
    state = request(PROMPTS[0])
    plan = begin(host, [state], 2, 1)
    verify = host.verifier.verify
    host.verifier.verify = _defer  # type: ignore[method-assign]
    seen += host.run(plan, Grant())
    host.verifier.verify = verify  # type: ignore[method-assign]
    seen += host.run(plan, Grant())
    assert len(drafter.jobs) == 1
    assert seen[0].trees["a"].token_ids.tolist() == seen[1].trees["a"].token_ids.tolist()
    assert_greedy([state])


@pytest.mark.parametrize(
    "drafter", [ScriptedDrafter(first(2)), ScriptedDrafter(_only_a_root)], ids=["2", "0"]
)
def test_a_drafter_is_asked_once_however_often_a_step_is_deferred(drafter: ScriptedDrafter) -> None:
    """Asking the drafter again would fail, as its entry would have no new tokens."""
    host, state = host_of(drafter), request(PROMPTS[0])
    plan = begin(host, [state], 2, 1)
    verify = host.verifier.verify
    for number in range(9):
        deferred = number % 3 != 2
        host.verifier.verify = _defer if deferred else verify  # type: ignore[method-assign]
        host.run(plan._replace(speculators=frozenset()) if number % 3 == 1 else plan, Grant())
        plan = plan if deferred else plan.next()
    assert len(drafter.jobs) == 3
    assert not any(counts.failed for counts in host.pool.counts.values())
    assert_greedy([state])


def _defer(jobs: Sequence[VerifyJob]) -> list[Verdict]:
    return [Verdict(EntryStatus.EXHAUSTED) for job in jobs]


def test_trees_of_other_services_are_merged_with_those_of_the_host() -> None:
    """Drafter 0 belongs to the host, tree 7 comes from another service; "b" is verified with the latter alone."""
    state, other = request(PROMPTS[0], "a"), request(PROMPTS[1], "b")
    host = host_of(ScriptedDrafter(first(1)))
    plan = begin(host, [state, other], 4, 1)
    given = {state_of.request.request_id: _tree_of(state_of, number=7) for state_of in (state, other)}
    (step,) = host.run(plan._replace(given=given, verbatim=frozenset(["b"])), Grant())
    assert {proposal.speculator for proposal in step.trees["a"].proposals} == {0, 7}
    assert {proposal.speculator for proposal in step.trees["b"].proposals} == {7}
    assert_greedy([state, other])


def _tree_of(state: RequestState, number: int) -> TokenTree:
    builder = TreeBuilder(state.tokens[-1])
    builder.propose_points(0, [(state.tokens[-1] + 1) % VOCABULARY], [0.99])
    tree = builder.build()
    return replace(tree, proposals=tuple([p._replace(speculator=number) for p in tree.proposals]))


def test_a_drafter_that_fails_loses_only_its_drafts() -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("out of luck")

    host, state = host_of(ScriptedDrafter(fail), ScriptedDrafter(first(1))), request(PROMPTS[0])
    steps = host.run(begin(host, [state], 4, 2), Grant(5, FOREVER))
    assert len(answers([state])[0]) == 1 + 2 * len(steps)
    assert_greedy([state])
    assert sum(step.drafted[0].failed for step in steps if 0 in step.drafted) >= 1
