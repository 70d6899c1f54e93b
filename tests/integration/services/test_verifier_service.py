"""Messages to the verifier: bad entries and internal errors do not end the stream."""

import asyncio
import threading
from typing import Any

import pytest

from gateway.session.verifier import VerifierClient
from specinfer.drafters import DrafterDescription
from specinfer.errors import FencedError, ServiceChangedError, UnavailableError
from specinfer.service.channel import open_channel
from specinfer.v1 import (
    speculator_pb2_grpc,
    tree_pb2,
    verifier_pb2_grpc,
)
from tests.support.oracle import first
from tests.support.service_messages import (
    ERROR,
    EXHAUSTED,
    HUGE,
    OK,
    PROMPT,
    RESYNC,
    draft_entry,
    drafting,
    one_reply,
    proposal,
    request,
    sampled,
    tree,
    verify_entry,
)
from tests.support.services import raising, speculator_service, step_entry, verifier_service
from tests.support.system import ScriptedDrafter, running_system

BAD_AT_THE_VERIFIER: dict[str, dict[str, Any]] = {
    "no delta": {"delta_token_ids": []},
    "foreign token": {"delta_token_ids": [5, HUGE, 3]},
    "long delta": {"delta_token_ids": [3] * 3000},
    "top k over the vocabulary": {"return_top_k": 98},
    "huge top k": {"return_top_k": HUGE},
    "NaN temperature": {"sampling": sampled(temperature=float("nan"))},
    "infinite temperature": {"sampling": sampled(temperature=float("inf"))},
    "negative temperature": {"sampling": sampled(temperature=-1.0)},
    "NaN top_p": {"sampling": sampled(top_p=float("nan"))},
    "top_p over one": {"sampling": sampled(top_p=2.0)},
    "empty tree": {"tree": tree_pb2.TokenTree()},
    "other root": {"tree": tree(token_ids=[9, 4], proposals=[proposal()])},
    "huge tokens": {"tree": tree(token_ids=[3, HUGE], proposals=[proposal()])},
    "odd lengths": {"tree": tree(parents=[-1], proposals=[proposal()])},
    "parents behind": {"tree": tree(parents=[-1, 7], proposals=[proposal()])},
    "negative parents": {"tree": tree(parents=[-1, -(2**31)], proposals=[proposal()])},
    "NaN score": {"tree": tree(scores=[1.0, float("nan")], proposals=[proposal()])},
    "unknown kind": {"tree": tree(proposals=[proposal(kind=77)])},
    "proposal from nowhere": {"tree": tree(proposals=[proposal(parent=HUGE)])},
    "huge children": {"tree": tree(proposals=[proposal(children=[HUGE])])},
    "huge order": {"tree": tree(proposals=[proposal()], order=[HUGE])},
    "huge q": {"tree": tree(proposals=[proposal(kind=2, q_token_ids=[HUGE], q_probabilities=[1.0])])},
    "NaN q": {"tree": tree(proposals=[proposal(kind=2, q_token_ids=[4], q_probabilities=[float("nan")])])},
    "q without tokens": {"tree": tree(proposals=[proposal(kind=3, q_probabilities=[1.0])])},
}
ODD_BUT_SERVED: dict[str, dict[str, Any]] = {
    "large top_k": {"sampling": sampled(temperature=0.5, top_k=HUGE)},
    "least temperature": {"sampling": sampled(temperature=1e-45)},
    "least top_p": {"sampling": sampled(top_p=1e-45)},
    "largest seed": {"sampling": sampled(seed=2**64 - 1)},
    "huge speculator": {"tree": tree(proposals=[proposal(speculator=HUGE)])},
    "top k": {"return_top_k": 97},
    "unknown shape": {"tree": None, "tree_plan": {"shape": 4, "node_budget": 2}},
}


async def test_a_bad_entry_at_the_verifier_costs_itself() -> None:
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        bad = {name: verify_entry(name, **fields) for name, fields in BAD_AT_THE_VERIFIER.items()}
        odd = {name: verify_entry(name, **fields) for name, fields in ODD_BUT_SERVED.items()}
        ahead = verify_entry("ahead", base_len=HUGE)
        entries = [*bad.values(), verify_entry("good"), *odd.values(), ahead]
        first_reply, second = await one_reply(
            stub.Verify, request(entries), request([verify_entry("good"), verify_entry("good")])
        )
        statuses = {v.request_id: v.status for v in first_reply.entries}
        assert statuses == (
            dict.fromkeys(bad, ERROR) | dict.fromkeys(odd, OK) | {"good": OK, "ahead": RESYNC}
        )
        top_k = next(v for v in first_reply.entries if v.request_id == "huge top k")
        assert f"return_top_k = {HUGE}: must be at most 97" in top_k.message
        assert [v.status for v in second.entries] == [OK, ERROR]
        assert "request_id = 'good': is in the message twice" in second.entries[1].message
        assert engine.cached_requests == len(odd) + 1


async def test_unknown_features_cost_the_entries_that_request_them() -> None:
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        asking = [verify_entry("asks", features_from=0), verify_entry("asks not")]
        beyond, whole, far = await one_reply(
            stub.Verify,
            request(asking, feature_layers=[1, HUGE]),
            request([verify_entry("asks", features_from=0)], feature_layers=[0, 3]),
            request([verify_entry("far", features_from=HUGE)], feature_layers=[0, 3]),
        )
        assert [v.status for v in beyond.entries] == [ERROR, OK]
        assert "must ascend from 0 to the model's 3 layers" in beyond.entries[0].message
        size = 2 * 2 * engine.runner.config.hidden_size
        assert len(whole.entries[0].features) == size * whole.entries[0].cached_len
        assert [v.status for v in far.entries] == [OK]
        assert far.entries[0].features == b""


async def test_features_of_another_size_cost_their_entry() -> None:
    drafter = ScriptedDrafter(first(1))
    drafter.description = DrafterDescription(feature_layers=(1, 2), feature_size=3)
    async with speculator_service({"a": drafter}) as (address, _), open_channel(address) as channel:
        stub = speculator_pb2_grpc.SpeculatorStub(channel)
        entries = [
            draft_entry("odd", target_features=bytes(13)),
            draft_entry("fits", target_features=bytes(24)),
        ]
        (reply,) = await one_reply(stub.Draft, drafting(entries))
        assert [r.status for r in reply.entries] == [ERROR, OK]
        assert "target_features = 13 bytes: must be a multiple of 12" in reply.entries[0].message
        (job,) = drafter.jobs
        assert job.features is not None
        assert job.features.states.shape == (2, 2, 3)


async def test_a_fault_of_the_verifier_ends_the_request_that_meets_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        fails = raising(engine._trees.verify, IndexError("a fault of ours"))
        monkeypatch.setattr(engine._trees, "verify", fails)
        before, failed, after = await one_reply(
            stub.Verify,
            request([]),
            request([verify_entry("a"), verify_entry("b")]),
            request([verify_entry("a"), verify_entry("b", base_len=3)]),
        )
        assert not before.entries
        assert [v.status for v in failed.entries] == [ERROR, OK]
        assert failed.entries[0].message.startswith("internal error: IndexError at services.py:")
        assert [v.status for v in after.entries] == [OK, OK], "nothing remains of the failed request"
    records = [record for record in caplog.records if "an entry failed" in record.getMessage()]
    assert [getattr(record, "request_id", "") for record in records] == ["a"]


@pytest.mark.parametrize("where", ["_forget_idle", "verify"])
async def test_a_fault_that_no_entry_causes_ends_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Its requests may be repeated; a request that was alone in the step fails."""
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        fails = raising(getattr(engine, where), KeyError("a fault of ours"), KeyError("another one"))
        monkeypatch.setattr(engine, where, fails)
        several, alone, after = await one_reply(
            stub.Verify,
            request([verify_entry("a"), verify_entry("b")]),
            request([verify_entry("a")]),
            request([verify_entry("a"), verify_entry("b", base_len=3)]),
        )
        reason = "internal error: KeyError"
        assert [(v.status, v.message) for v in several.entries] == [(EXHAUSTED, reason)] * 2
        assert [(v.status, v.message) for v in alone.entries] == [(ERROR, reason)]
        assert [v.status for v in after.entries] == [OK, RESYNC], "nothing remains of the step"
    assert any("a step of 2 requests failed" in record.getMessage() for record in caplog.records)


async def test_a_verifier_serves_the_latest_lease() -> None:
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        no_lease, old, new = (VerifierClient(channel, fence=number) for number in (0, 4, 5))
        entry = step_entry("r", PROMPT)
        for client in (no_lease, old, new):
            await client.describe()
        assert (await no_lease.verify([entry], {}))[0].by_request
        assert engine.cached_requests == 1
        await old.verify([], {})
        assert engine.cached_requests == 0, "a new lease begins with an empty cache"
        await old.verify([entry], {})
        await new.verify([step_entry("other", PROMPT)], {})
        assert engine.cached_requests == 1
        for client in (no_lease, old):
            with pytest.raises(FencedError, match=f"lease {client.fence} has ended"):
                await client.verify([entry], {})
            await client.release(["other"])
            assert engine.cached_requests == 1, "nothing is done for a stale lease"
        await new.release(["other"])
        assert engine.cached_requests == 0


async def test_another_verifier_process_is_noticed_at_its_first_answer() -> None:
    entry = step_entry("r", PROMPT)
    async with verifier_service(instance_id="one", model_fingerprint="m") as (address, _):
        channel = open_channel(address)
        client = VerifierClient(channel)
        await client.describe()
        assert (client.instance_id, client.model_fingerprint) == ("one", "m")
        await client.verify([entry], {})
    with pytest.raises(UnavailableError):
        await client.verify([entry], {})
    async with verifier_service(instance_id="two", model_fingerprint="n", listen=address):
        await channel.channel_ready()
        for _ in range(2):
            with pytest.raises(ServiceChangedError, match="instance is now two"):
                await client.verify([entry], {})
        await client.describe()
        assert client.model_fingerprint == "n"
        await client.verify([entry], {})
    await channel.close()


async def test_the_streams_of_a_gateway_that_has_ended_are_closed(redis_url: str) -> None:
    """A draining server waits for open calls, here for an hour."""
    drafters, options = {"right": ScriptedDrafter(first(2))}, {"drain_seconds": 3600.0}
    async with running_system(redis_url, drafters, service_options=options) as system:
        assert len(await system.tokens(PROMPT)) == 16


async def test_a_cancelled_step_leaves_no_reply_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway drops a step when it loses its lease; the next step must not get its reply."""
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        client, original, go_on = VerifierClient(channel), engine.verify, threading.Event()
        entered = threading.Event()

        def slow(jobs: Any) -> Any:
            entered.set()
            go_on.wait(120)
            return original(jobs)

        monkeypatch.setattr(engine, "verify", slow)
        step = asyncio.create_task(client.verify([step_entry("r", PROMPT)], {}))
        await asyncio.to_thread(entered.wait, 10)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        go_on.set()
        assert set((await client.verify([step_entry("other", PROMPT)], {}))[0].by_request) == {"other"}
