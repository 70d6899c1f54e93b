"""Messages to verifier and speculator service: a bad entry costs itself, a fault
of ours its step; neither costs the stream."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import pytest

from gateway.session.verifier import VerifierClient
from specinfer.drafters import DrafterDescription
from specinfer.errors import FencedError, ServiceChangedError, UnavailableError
from specinfer.service.channel import open_channel
from specinfer.v1 import (
    common_pb2,
    speculator_pb2,
    speculator_pb2_grpc,
    tree_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)
from speculator_svc.metrics import SpeculatorMetrics
from tests.support.oracle import first
from tests.support.services import speculator_service, step_entry, verifier_service
from tests.support.system import ScriptedDrafter
from verifier_svc.metrics import VerifierMetrics

PROMPT = [5, 17, 3]
OK, RESYNC, ERROR, EXHAUSTED = 1, 2, 3, 4
HUGE = 2**32 - 1


def verify_entry(request_id: str, **fields: Any) -> verifier_pb2.VerifyEntry:
    defaults = {"delta_token_ids": PROMPT, "tree": tree_pb2.TokenTree(token_ids=[3], parents=[-1])}
    return verifier_pb2.VerifyEntry(request_id=request_id, **(defaults | fields))


def draft_entry(request_id: str, **fields: Any) -> speculator_pb2.DraftEntry:
    defaults: dict[str, Any] = {"delta_token_ids": PROMPT, "node_budget": 4, "max_depth": 4}
    return speculator_pb2.DraftEntry(request_id=request_id, **(defaults | fields))


def tree(**fields: Any) -> tree_pb2.TokenTree:
    defaults: dict[str, Any] = {"token_ids": [3, 4], "parents": [-1, 0]}
    return tree_pb2.TokenTree(**(defaults | fields))


def proposal(**fields: Any) -> tree_pb2.Proposal:
    return tree_pb2.Proposal(**({"kind": 1, "children": [1]} | fields))


def sampled(**fields: Any) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(**fields)


def top_k(**fields: Any) -> speculator_pb2.TargetTopK:
    return speculator_pb2.TargetTopK(
        **({"token_ids": [3], "parents": [-1], "top_k_token_ids": [4, 5]} | fields)
    )


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
}


async def one_reply(call: Callable[[AsyncIterator[Any]], Any], *messages: Any) -> list[Any]:
    """The replies to some messages on one stream."""

    async def stream() -> AsyncIterator[Any]:
        for message in messages:
            yield message

    return [reply async for reply in call(stream())]


def request(entries: Iterable[verifier_pb2.VerifyEntry], **fields: Any) -> verifier_pb2.VerifyRequest:
    return verifier_pb2.VerifyRequest(step_id=1, entries=entries, **fields)


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
        found = {v.request_id: v.status for v in first_reply.entries}
        assert found == (dict.fromkeys(bad, ERROR) | dict.fromkeys(odd, OK) | {"good": OK, "ahead": RESYNC})
        top_k = next(v for v in first_reply.entries if v.request_id == "huge top k")
        assert f"return_top_k = {HUGE}: at most 97" in top_k.message
        assert [v.status for v in second.entries] == [OK, ERROR]
        assert "request_id = 'good': is in the message twice" in second.entries[1].message
        assert engine.held_requests == len(odd) + 1


async def test_features_that_the_model_does_not_have_cost_those_who_ask() -> None:
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
        assert len(whole.entries[0].features) == size * whole.entries[0].held_len
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
        assert "target_features = 13: not of 12 bytes a token" in reply.entries[0].message
        (job,) = drafter.jobs
        assert job.features is not None
        assert job.features.states.shape == (2, 2, 3)


async def test_a_fault_of_the_verifier_ends_the_request_that_meets_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        verify, faults = engine._trees.verify, [IndexError("a fault of ours")]

        def raises(*arguments: Any) -> Any:
            if faults:
                raise faults.pop()
            return verify(*arguments)

        monkeypatch.setattr(engine._trees, "verify", raises)
        before, failed, after = await one_reply(
            stub.Verify,
            request([]),
            request([verify_entry("a"), verify_entry("b")]),
            request([verify_entry("a"), verify_entry("b", base_len=3)]),
        )
        assert not before.entries
        assert [v.status for v in failed.entries] == [ERROR, OK]
        assert failed.entries[0].message.startswith("internal error: IndexError at test_service_doors.py:")
        assert [v.status for v in after.entries] == [OK, OK], "nothing is left of the one that failed"
    told = [record for record in caplog.records if "an entry failed" in record.getMessage()]
    assert [getattr(record, "request_id", "") for record in told] == ["a"]


@pytest.mark.parametrize("where", ["_forget_idle", "verify"])
async def test_a_fault_that_no_entry_is_to_blame_for_ends_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """They come again; one that meets it alone has failed."""
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        original, faults = getattr(engine, where), [KeyError("a fault of ours"), KeyError("another one")]

        def raises(*arguments: Any) -> Any:
            if faults:
                raise faults.pop()
            return original(*arguments)

        monkeypatch.setattr(engine, where, raises)
        several, alone, after = await one_reply(
            stub.Verify,
            request([verify_entry("a"), verify_entry("b")]),
            request([verify_entry("a")]),
            request([verify_entry("a"), verify_entry("b", base_len=3)]),
        )
        why = "internal error: KeyError"
        assert [(v.status, v.message) for v in several.entries] == [(EXHAUSTED, why)] * 2
        assert [(v.status, v.message) for v in alone.entries] == [(ERROR, why)]
        assert [v.status for v in after.entries] == [OK, RESYNC], "nothing is left of the step"
    assert any("a step of 2 requests failed" in record.getMessage() for record in caplog.records)


async def test_a_fault_while_settling_costs_those_requests_their_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        settle, faults = engine.settle, [KeyError("a fault of ours")]

        def raises() -> None:
            if engine._unsettled and faults:
                raise faults.pop()
            settle()

        monkeypatch.setattr(engine, "settle", raises)
        replies = await one_reply(
            stub.Verify, request([verify_entry("a")]), request([verify_entry("a", base_len=3)])
        )
        assert [v.status for reply in replies for v in reply.entries] == [OK, RESYNC]


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


def drafting(entries: Iterable[speculator_pb2.DraftEntry], client: str = "") -> speculator_pb2.DraftRequest:
    return speculator_pb2.DraftRequest(step_id=1, entries=entries, client=client)


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


async def test_tokens_that_no_drafter_can_hold_cost_their_entry() -> None:
    """A drafter without a vocabulary of its own is told any token."""
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
        original, faults = engine._ask_all, [AttributeError("a fault of ours")]

        def raises(*arguments: Any) -> Any:
            if faults:
                raise faults.pop()
            return original(*arguments)

        monkeypatch.setattr(engine, "_ask_all", raises)
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
        assert (gone.released, engine.held_requests) == (1, 1)
        (kept,) = await one_reply(
            stub.Draft, drafting([draft_entry("r", base_len=4, delta_token_ids=[2])], "y")
        )
        assert kept.entries[0].status == OK


async def test_a_verifier_serves_the_latest_lease() -> None:
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        no_lease, old, new = (VerifierClient(channel, fence=number) for number in (0, 4, 5))
        entry = step_entry("r", PROMPT)
        for client in (no_lease, old, new):
            await client.describe()
        assert (await no_lease.verify([entry], {})).by_request
        assert engine.held_requests == 1
        await old.verify([], {})
        assert engine.held_requests == 0, "it begins with nothing held"
        await old.verify([entry], {})
        await new.verify([step_entry("other", PROMPT)], {})
        assert engine.held_requests == 1
        for client in (no_lease, old):
            with pytest.raises(FencedError, match=f"lease {client.fence} is over"):
                await client.verify([entry], {})
            await client.release(["other"])
            assert engine.held_requests == 1, "nothing is done for a stale lease"
        await new.release(["other"])
        assert engine.held_requests == 0


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
            with pytest.raises(ServiceChangedError, match="instance two answers instead of one"):
                await client.verify([entry], {})
        await client.describe()
        assert client.model_fingerprint == "n"
        await client.verify([entry], {})
    await channel.close()


async def test_another_process_with_a_later_lease_is_another_process_first() -> None:
    async with verifier_service(instance_id="two") as (address, _engine), open_channel(address) as channel:
        client = VerifierClient(channel, fence=1)
        client.instance_id = "one"
        await VerifierClient(channel, fence=2).verify([step_entry("other", PROMPT)], {})
        with pytest.raises(ServiceChangedError):
            await client.verify([step_entry("r", PROMPT)], {})


async def test_a_step_that_is_given_up_leaves_no_reply_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway drops a step when it loses its lease; the reply would be taken for that of the next."""
    async with verifier_service() as (address, engine), open_channel(address) as channel:
        client, original, go_on = VerifierClient(channel), engine.verify, threading.Event()
        entered = threading.Event()

        def slow(jobs: Any) -> Any:
            entered.set()
            go_on.wait(10)
            return original(jobs)

        monkeypatch.setattr(engine, "verify", slow)
        step = asyncio.create_task(client.verify([step_entry("r", PROMPT)], {}))
        await asyncio.to_thread(entered.wait, 10)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        go_on.set()
        assert set((await client.verify([step_entry("other", PROMPT)], {})).by_request) == {"other"}


def test_errors_have_statuses_of_their_own() -> None:
    from specinfer.wire.status import status_of

    assert status_of(FencedError("x")) is grpc.StatusCode.ABORTED
    assert status_of(ServiceChangedError("x")) is grpc.StatusCode.UNAVAILABLE


async def test_what_is_counted_is_counted_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that hang on what was counted before would go back where two threads count."""
    threads: dict[str, set[str]] = {"cache": set(), "held": set()}

    def noting(name: str, original: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: Any) -> None:
            threads[name].add(threading.current_thread().name)
            original(*arguments)

        return noted

    async with (
        verifier_service() as (verifier, _),
        speculator_service({"a": ScriptedDrafter(first(1))}) as (speculator, _),
        open_channel(verifier) as to_verifier,
        open_channel(speculator) as to_speculator,
    ):
        monkeypatch.setattr(VerifierMetrics, "observe_cache", noting("cache", VerifierMetrics.observe_cache))
        monkeypatch.setattr(SpeculatorMetrics, "observe_held", noting("held", SpeculatorMetrics.observe_held))
        verify = verifier_pb2_grpc.VerifierStub(to_verifier)
        draft = speculator_pb2_grpc.SpeculatorStub(to_speculator)
        await one_reply(verify.Verify, request([verify_entry("a")]))
        await one_reply(draft.Draft, drafting([draft_entry("a")]))
        await verify.Release(common_pb2.ReleaseRequest(request_ids=["a"]))
        await draft.Release(common_pb2.ReleaseRequest(request_ids=["a"]))
    assert {name: len(found) for name, found in threads.items()} == {"cache": 1, "held": 1}
    assert "MainThread" not in threads["cache"] | threads["held"]


async def test_a_fault_in_metrics_costs_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*_: Any) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts.")

    async with (
        verifier_service() as (verifier, _),
        speculator_service({"a": ScriptedDrafter(first(1))}) as (speculator, engine),
        open_channel(verifier) as to_verifier,
        open_channel(speculator) as to_speculator,
    ):
        for name in ("observe", "observe_cache", "refused"):
            monkeypatch.setattr(VerifierMetrics, name, raises)
        for name in ("observe", "observe_held"):
            monkeypatch.setattr(SpeculatorMetrics, name, raises)
        verify = verifier_pb2_grpc.VerifierStub(to_verifier)
        draft = speculator_pb2_grpc.SpeculatorStub(to_speculator)
        steps = [
            request([verify_entry("a", base_len=3 * i), verify_entry("b", base_len=9)]) for i in range(3)
        ]
        replies = await one_reply(verify.Verify, *steps)
        assert [[v.status for v in reply.entries] for reply in replies] == [[OK, RESYNC]] * 3
        drafts = await one_reply(
            draft.Draft, *[drafting([draft_entry("a", base_len=3 * i)]) for i in range(3)]
        )
        assert [r.status for reply in drafts for r in reply.entries] == [OK] * 3
        assert engine.held_requests == 1, "it was not forgotten"
        assert (await verify.Release(common_pb2.ReleaseRequest(request_ids=["a"]))).released == 1
        assert (await draft.Release(common_pb2.ReleaseRequest(request_ids=["a"]))).released == 1
    told = [record for record in caplog.records if "could not be counted" in record.getMessage()]
    assert len(told) == 2, "a line each, not one for every step"
