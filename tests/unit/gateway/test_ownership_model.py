"""Search of all states of a small ownership protocol: invariants hold, and the lack of a rule is detected."""

from functools import partial

import pytest

from gateway.store.records import encode_progress
from specinfer.request.sampling import GREEDY
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState
from tests.unit.gateway.ownership_actions import holds, successors
from tests.unit.gateway.ownership_model import Rules, State, Write, finished, first
from tests.unit.gateway.state_search import SearchResult, search

AT_ONCE = {"steps_travel": False, "writes_travel": False}
"""Messages arrive when they are sent; for searches that do not test late messages."""
SEARCHES = {
    "leases that end, writes that arrive late": Rules(
        drawn=True, steps_travel=False, expiries=2, crashes=0, late=0
    ),
    "writes nobody waits for": Rules(
        drawn=True, steps_travel=False, tokens=1, expiries=1, crashes=0, drains=1
    ),
    "steps that arrive late": Rules(drawn=True, writes_travel=False, expiries=1, late=0),
    "steps nobody waits for": Rules(drawn=True, writes_travel=False, tokens=1, expiries=1),
    "Redis loses its data": Rules(**AT_ONCE, losses=1, tokens=1, expiries=1, crashes=0),
    "two requests": Rules(**AT_ONCE, requests=2, tokens=1, expiries=1, crashes=0),
    "three gateways": Rules(**AT_ONCE, gateways=3, tokens=1, expiries=0, crashes=2),
}
MISTAKES = {
    "writes are not checked against the owner": (
        Rules(drawn=True, steps_travel=False, expiries=1, late=0, writes_name_their_writer=False),
        "writes what B owns",
    ),
    "writes do not say of which adoption they are": (
        Rules(drawn=True, steps_travel=False, expiries=1, drains=1, writes_name_their_adoption=False),
        "under an adoption that is over",
    ),
    "the verifier does not check fences": (
        Rules(drawn=True, writes_travel=False, expiries=1, late=0, verifier_checks_fences=False),
        "the verifier serves",
    ),
    "tokens are published before they are written": (
        Rules(drawn=True, steps_travel=False, late=0, publishes_after_writes=False),
        "is shown, () was stored",
    ),
    "requests are adopted without a look at the lease": (
        Rules(drawn=True, steps_travel=False, expiries=1, late=0, adopts_only_what_is_free=False),
        "whose lease goes on",
    ),
    "fences begin anew when Redis has lost its data": (
        Rules(**AT_ONCE, losses=1, expiries=1, fences_go_on_rising=False),
        "the verifier serves B after A",
    ),
}


def explored(rules: Rules) -> SearchResult[State]:
    return search(first(rules), partial(successors, rules=rules), holds)


def problem(outcome: SearchResult[State], index: int | None) -> str:
    """Return the error of a state and the shortest path to it; "" without a state."""
    if index is None:
        return ""
    reason = outcome.states[index].broken or "some client can never get everything"
    return "\n".join(
        [f"{reason}, after:", *(f"{n:3} {action}" for n, action in enumerate(outcome.path(index), 1))]
    )


@pytest.mark.parametrize("rules", SEARCHES.values(), ids=SEARCHES)
def test_the_invariants_hold_in_every_state_and_every_request_can_still_finish(rules: Rules) -> None:
    outcome = explored(rules)
    assert not problem(outcome, outcome.broken)
    assert not problem(outcome, outcome.stuck(partial(finished, rules=rules)))
    assert len(outcome.states) > 500, "hardly anything can happen"


@pytest.mark.parametrize(("rules", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_protocol_without_one_of_its_rules_breaks_an_invariant(rules: Rules, reason: str) -> None:
    outcome = explored(rules)
    assert reason in problem(outcome, outcome.broken)


def test_a_request_whose_owner_cannot_be_replaced_is_found_stuck() -> None:
    """Negative control for unfinished requests: leases that never end keep a dead owner's request."""
    rules = Rules(**AT_ONCE, tokens=1, expiries=0, crashes=1)

    def without_ends(state: State) -> list[tuple[str, State]]:
        return [(a, s) for a, s in successors(state, rules) if not a.endswith("lease ends")]

    outcome = search(first(rules), without_ends, holds)
    assert "crashes" in problem(outcome, outcome.stuck(partial(finished, rules=rules)))


def test_the_path_to_a_state_is_a_shortest_one() -> None:
    outcome = search(0, lambda n: [("+1", n + 1), ("*3", n * 3)] if n < 20 else [], lambda n: n != 10)
    assert outcome.broken is not None
    assert outcome.path(outcome.broken) == ["+1", "*3", "*3", "+1"]


def test_an_incomplete_search_is_an_error() -> None:
    with pytest.raises(AssertionError, match="more than 10 states"):
        search(0, lambda n: [("+1", n + 1)], lambda n: True, max_states=10)


def test_a_write_of_the_code_names_what_a_write_of_the_model_names() -> None:
    """The gateway is an argument of the script; adoption, request, place and tokens come from the run's state."""
    request = GenerationRequest("r", (5,), 9, GREEDY)
    named = dict[str, object]()
    for field, state, start, tokens in (
        ("request", RequestState.new(GenerationRequest("q", (5,), 9, GREEDY), 0.0, 0, False), 0, [7]),
        ("number", RequestState.new(request, 0.0, 0, False, adoption=2), 0, [7]),
        ("start", RequestState.new(request, 0.0, 0, False), 1, [7]),
        ("tokens", RequestState.new(request, 0.0, 0, False), 0, [8]),
    ):
        named[field] = encode_progress(Progress(state, tokens, [], start, False), [])
    usual = encode_progress(Progress(RequestState.new(request, 0.0, 0, False), [7], [], 0, False), [])
    assert {"gateway", *named} == set(Write._fields)
    assert all(item != usual for item in named.values()), "each field of the model is in the code's item"
