"""Messages to a speculator service: bad entries and internal errors do not end the stream."""

from typing import Any

import pytest

from specinfer.drafters import DrafterDescription
from specinfer.service.channel import open_channel
from specinfer.v1 import (
    common_pb2,
    speculator_pb2_grpc,
)
from tests.support.oracle import first
from tests.support.service_messages import (
    ERROR,
    EXHAUSTED,
    HUGE,
    OK,
    RESYNC,
    draft_entry,
    drafting,
    one_reply,
    sampled,
    top_k,
)
from tests.support.services import raising, speculator_service
from tests.support.system import ScriptedDrafter

BAD_AT_THE_SPECULATORS: dict[str, dict[str, Any]] = {
    "no delta": {"delta_token_ids": []},
    "NaN temperature": {"sampling": sampled(temperature=float("nan"))},
    "negative top_p": {"sampling": sampled(top_p=-1.0)},
    "NaN path probability": {"min_path_probability": float("nan")},
    "path probability over one": {"min_path_probability": 2.0},
    "huge budget": {"node_budget": HUGE},
    "unknown speculator": {"speculators": [0, HUGE]},
    "features that nobody reads": {"target_features": b"abcd"},
    "predictions without nodes": {"target_top_k": top_k(token_ids=[])},
    "nodes without predictions": {"target_top_k": top_k(top_k_token_ids=[])},
    "too many predictions": {"target_top_k": top_k(top_k_token_ids=[1, 2, 3])},
    "more at one node": {"target_top_k": top_k(token_ids=[3, 4])},
    "predictions without parents": {"target_top_k": top_k(parents=[])},
    "predictions in a circle": {"target_top_k": top_k(parents=[0])},
    "huge predictions": {"target_top_k": top_k(top_k_token_ids=[1, HUGE])},
    "predictions at huge tokens": {"target_top_k": top_k(token_ids=[HUGE])},
}
SERVED_BY_THE_SPECULATORS: dict[str, dict[str, Any]] = {
    "huge depth": {"max_depth": HUGE},
    "twice the same speculator": {"speculators": [0, 0]},
    "unknown shape": {"shape": 99},
    "largest seeds": {"sampling": sampled(seed=2**64 - 1), "draw_seed": 2**64 - 1},
    "features from nowhere": {"features_start": HUGE},
    "predictions": {"target_top_k": top_k()},
}


async def test_a_bad_entry_at_the_speculators_costs_itself() -> None:
    drafter = ScriptedDrafter(first(1))
    drafter.description = DrafterDescription(target_top_k=2)
    async with speculator_service({"a": drafter}) as (address, _engine), open_channel(address) as channel:
        stub = speculator_pb2_grpc.SpeculatorStub(channel)
        bad = {name: draft_entry(name, **fields) for name, fields in BAD_AT_THE_SPECULATORS.items()}
        served = {name: draft_entry(name, **fields) for name, fields in SERVED_BY_THE_SPECULATORS.items()}
        entries = [*bad.values(), *served.values(), draft_entry("good"), draft_entry("good")]
        first_reply, second = await one_reply(
            stub.Draft, drafting(entries), drafting([draft_entry("good", base_len=3, delta_token_ids=[4])])
        )
        statuses = [(r.request_id, r.status) for r in first_reply.entries]
        assert statuses == [
            *((name, ERROR) for name in bad),
            *((name, OK) for name in served),
            *(("good", OK), ("good", ERROR)),
        ]
        assert "request_id: is in the message twice" in first_reply.entries[-1].message
        assert [r.status for r in second.entries] == [OK]
        assert max(job.limits.depth for job in drafter.jobs) == 4, "no deeper than it has nodes"


async def test_tokens_over_32_bits_cost_their_entry() -> None:
    """A drafter without a vocabulary size gets any token."""
    async with (
        speculator_service({"a": ScriptedDrafter(first(1))}) as (address, _),
        open_channel(address) as channel,
    ):
        stub = speculator_pb2_grpc.SpeculatorStub(channel)
        entries = [draft_entry("huge", delta_token_ids=[HUGE]), draft_entry("good")]
        (reply,) = await one_reply(stub.Draft, drafting(entries))
    assert [[d.status for d in r.drafts] for r in reply.entries] == [[EXHAUSTED], [OK]]


@pytest.mark.parametrize("fault", ["raises what nobody expects", "returns too few"])
async def test_a_faulty_drafter_costs_its_drafts(fault: str) -> None:
    drafter, good = ScriptedDrafter(first(1)), ScriptedDrafter(first(2))

    def draft(jobs: Any) -> Any:
        if fault == "returns too few":
            return []
        raise TypeError("a fault of the drafter")

    drafter.draft = draft  # type: ignore[method-assign]
    async with (
        speculator_service({"bad": drafter, "good": good}) as (address, _),
        open_channel(address) as channel,
    ):
        stub = speculator_pb2_grpc.SpeculatorStub(channel)
        (reply,) = await one_reply(stub.Draft, drafting([draft_entry("r"), draft_entry("s")]))
    assert [[(d.speculator, d.status) for d in r.drafts] for r in reply.entries] == [
        [(0, EXHAUSTED), (1, OK)]
    ] * 2


async def test_a_fault_of_the_speculator_service_costs_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async with speculator_service({"a": ScriptedDrafter(first(1))}) as (address, engine):
        fails = raising(engine._ask_all, AttributeError("a fault of ours"))
        monkeypatch.setattr(engine, "_ask_all", fails)
        async with open_channel(address) as channel:
            stub = speculator_pb2_grpc.SpeculatorStub(channel)
            failed, after = await one_reply(
                stub.Draft,
                drafting([draft_entry("a"), draft_entry("b")]),
                drafting([draft_entry("a"), draft_entry("b", base_len=3)]),
            )
    assert [(r.request_id, r.status) for r in failed.entries] == [("a", EXHAUSTED), ("b", EXHAUSTED)]
    assert failed.entries[0].message == "internal error: AttributeError"
    assert [r.status for r in after.entries] == [OK, RESYNC]


async def test_clients_with_the_same_request_id_do_not_meet() -> None:
    drafter = ScriptedDrafter(first(1))
    async with (
        speculator_service({"a": drafter}, instance_id="one") as (address, engine),
        open_channel(address) as channel,
    ):
        stub = speculator_pb2_grpc.SpeculatorStub(channel)
        replies = []
        for client, delta in (("x", [5, 6]), ("y", [7, 8, 9])):
            entry = draft_entry("r", delta_token_ids=delta)
            replies += await one_reply(stub.Draft, drafting([entry], client))
        for client, base in (("x", 2), ("y", 3)):
            entry = draft_entry("r", base_len=base, delta_token_ids=[1])
            replies += await one_reply(stub.Draft, drafting([entry], client))
        assert [(r.entries[0].request_id, r.entries[0].status) for r in replies] == [("r", OK)] * 4
        assert [list(job.context) for job in drafter.jobs[-2:]] == [[5, 6, 1], [7, 8, 9, 1]]
        assert {reply.instance_id for reply in replies} == {"one"}
        gone = await stub.Release(common_pb2.ReleaseRequest(request_ids=["r"], client="x"))
        assert (gone.released, engine.cached_requests) == (1, 1)
        (kept,) = await one_reply(
            stub.Draft, drafting([draft_entry("r", base_len=4, delta_token_ids=[2])], "y")
        )
        assert kept.entries[0].status == OK
