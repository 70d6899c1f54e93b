"""A gateway checks a verifier's answer: an impossible verdict fails only its entry."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.session.verdicts import sound_verdicts
from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import EntryStatus, FinishReason
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import MAX_DEFERRED_S, StepEntry, apply_verdict
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.tree import TokenTree, TreeLimits
from specinfer.v1 import common_pb2, verifier_pb2
from tests.support.trees import CAT, RAN, SAT, THE, VOCABULARY, example_tree

TREES = {"a": example_tree()}
PATH = [1, 2]
"""Nodes of the tokens cat and sat; see tests.support.trees."""


def entry(name: str, logprobs: bool = False, top: int = 0) -> StepEntry:
    request = GenerationRequest(name, (CAT, RAN, THE), 8, GREEDY, logprobs=logprobs, top_logprobs=top)
    state = RequestState.new(request, 0.0, 0, False)
    return StepEntry(state, 1, (RAN, THE), True, TreeLimits(8, 4), 4)


def answer(name: str, **fields: object) -> verifier_pb2.Verdict:
    right: dict[str, object] = {"status": 1, "accepted_nodes": PATH, "bonus_token_id": SAT, "cached_len": 5}
    return verifier_pb2.Verdict(request_id=name, **(right | fields))  # type: ignore[arg-type]


def test_a_right_answer_is_used_unchanged() -> None:
    verdict = sound_verdicts([entry("a")], TREES, [answer("a")], VOCABULARY)["a"]
    assert (verdict.status, verdict.accepted, verdict.bonus, verdict.cached_len) == (
        EntryStatus.OK,
        (1, 2),
        SAT,
        5,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"cached_len": 6},
        {"bonus_token_id": VOCABULARY},
        {"bonus_token_id": 2**32 - 1},
        {"accepted_nodes": [2], "cached_len": 4},
        {"accepted_nodes": [1, 1]},
        {"accepted_nodes": [1, 4]},
        {"accepted_nodes": [0], "cached_len": 4},
        {"accepted_nodes": [5], "cached_len": 4},
        {"status": 0},
        {"status": 99},
        {"request_id": "b"},
    ],
    ids=str,
)
def test_an_impossible_answer_fails_only_its_entry(wrong: dict[str, object]) -> None:
    spoilt = answer(**({"name": "a"} | {k: v for k, v in wrong.items() if k != "request_id"}))  # type: ignore[arg-type]
    spoilt.request_id = str(wrong.get("request_id", "a"))
    good = answer("b", accepted_nodes=[], cached_len=3)
    trees = TREES | {"b": TokenTree.root_only(THE)}
    verdicts = sound_verdicts([entry("a"), entry("b")], trees, [spoilt, good], VOCABULARY)
    assert verdicts["a"].status is EntryStatus.ERROR
    assert verdicts["a"].message
    assert (verdicts["b"].status, verdicts["b"].bonus) == (EntryStatus.OK, SAT)


@pytest.mark.parametrize(("cached_len", "sound"), [(1, False), (2, True), (3, False), (4, False)])
def test_a_limited_prompt_keeps_a_token_to_be_sent(cached_len: int, sound: bool) -> None:
    """A verifier that ignores the limit would cache the whole prompt, and the request would wait forever."""
    limited = replace(entry("a"), final=False, read_limit=1)
    spoken = answer("a", accepted_nodes=[], cached_len=cached_len)
    verdict = sound_verdicts([limited], {}, [spoken], VOCABULARY)["a"]
    assert (verdict.status is EntryStatus.OK) == sound


def test_the_error_in_an_answer_is_named() -> None:
    def message(**fields: object) -> str:
        return sound_verdicts([entry("a")], TREES, [answer("a", **fields)], VOCABULARY)["a"].message

    assert "accepted nodes [9], which are not a path" in message(accepted_nodes=[9], cached_len=4)
    assert message(cached_len=7) == "the verifier cached 7 tokens instead of 5"


def test_nodes_without_a_tree_are_refused() -> None:
    assert sound_verdicts([entry("a")], {}, [answer("a")], VOCABULARY)["a"].status is EntryStatus.ERROR


def test_every_token_needs_its_log_probability_if_requested() -> None:
    statuses = [
        sound_verdicts([entry("a", True)], TREES, [answer("a", logprobs=[0.0] * n)], VOCABULARY)["a"].status
        for n in (2, 3, 4)
    ]
    assert statuses == [EntryStatus.ERROR, EntryStatus.OK, EntryStatus.ERROR]


def test_each_token_needs_the_requested_number_of_alternatives() -> None:
    def status(*rows: dict[str, list[Any]]) -> EntryStatus:
        reply = answer("a", logprobs=[0.0] * 3, top_logprobs=[common_pb2.TopLogprobs(**row) for row in rows])
        return sound_verdicts([entry("a", True, 2)], TREES, [reply], VOCABULARY)["a"].status

    good: dict[str, list[Any]] = {"token_ids": [CAT, SAT], "logprobs": [-0.5, -1.0]}
    bad = [good | {"token_ids": [CAT]}, good | {"token_ids": [CAT, VOCABULARY]}, {}]
    assert status(good, good, good) is EntryStatus.OK
    assert status(good, good) is EntryStatus.ERROR
    assert [status(good, good, row) for row in bad] == [EntryStatus.ERROR] * 3
    unasked = answer("a", top_logprobs=[common_pb2.TopLogprobs(**good)])
    assert sound_verdicts([entry("a")], TREES, [unasked], VOCABULARY)["a"].status is EntryStatus.OK


def test_an_entry_without_an_answer_ends_and_does_not_wait_for_ever() -> None:
    verdicts = sound_verdicts([entry("a"), entry("b")], TREES, [answer("a")], VOCABULARY)
    assert (verdicts["a"].status, verdicts["b"].status) == (EntryStatus.OK, EntryStatus.ERROR)


def test_a_deferred_request_fails_after_a_time_and_not_after_steps() -> None:
    """The number of steps in that time does not matter; a step with a verdict restarts the time limit."""
    asked, deferred = entry("a"), Verdict(EntryStatus.EXHAUSTED, "its constraint is being compiled")
    served = Verdict(EntryStatus.OK, accepted=(), bonus=SAT, cached_len=3)
    for begin in (0.0, 100.0):
        for step in range(3000):
            assert apply_verdict(asked, None, deferred, begin + MAX_DEFERRED_S * step / 3000) is None
        assert apply_verdict(asked, None, Verdict(EntryStatus.RESYNC), begin) is None, "no way around it"
        assert asked.state.finish is None
        if begin == 0.0:
            assert apply_verdict(asked, None, served, MAX_DEFERRED_S) is None
    ended = apply_verdict(asked, None, deferred, 100.1 + MAX_DEFERRED_S)
    assert ended is not None
    assert (asked.state.finish, asked.state.retryable) == (FinishReason.ERROR, True)
    assert asked.state.error == "its constraint is being compiled"


def test_a_status_other_than_ok_needs_nothing_else() -> None:
    resync = verifier_pb2.Verdict(request_id="a", status=EntryStatus.RESYNC)  # type: ignore[arg-type]
    assert sound_verdicts([entry("a")], TREES, [resync], VOCABULARY)["a"].status is EntryStatus.RESYNC
