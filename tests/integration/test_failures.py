"""Failures stay small: one speculator, one request, one iteration, never the batch."""

import asyncio
import io
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from rich.console import Console

import gateway.loop
import gateway.store.requests
from gateway.clients.speculator_directory import SpeculatorDirectory
from gateway.metrics.requests import RequestMetrics
from gateway.planning.planner import PLAIN, Choice, Planner, StepReport
from gateway.requests.feeds import Feed
from gateway.requests.request import FinishReason
from gateway.requests.room import CacheRoom
from gateway.requests.scheduler import Scheduler
from gateway.requests.text import TextStream
from specinfer.cli.processes import Child, free_ports, wait_for_port
from specinfer.cli.redis_server import redis_command
from specinfer.cli.show import status_table
from specinfer.errors import IncompatibleError, SpecInferError, UnavailableError
from specinfer.service.engine_thread import EngineThread
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, generation_pb2
from speculator_svc.clients import request_id_of
from speculator_svc.drafters import DraftJob
from tests.oracle import always, first, greedy
from tests.system import ScriptedDrafter, add_speculators, ascii_tokenizer, request_for, running_system, until

PROMPT = [5, 17, 3, 88, 41]


def _broken(change: Callable[[TokenTree, DraftJob], TokenTree]) -> Callable[[DraftJob], TokenTree]:
    return lambda job: change(always(job), job)


def _ints(values: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(values, np.int32)


MALFORMED = {
    "cycle": _broken(lambda t, j: replace(t, parents=_ints([-1, *([2, 1, 1, 1, 1][: len(t) - 1])]))),
    "foreign token": _broken(
        lambda t, j: replace(t, token_ids=_ints([int(t.token_ids[0])] + [500] * (len(t) - 1)))
    ),
    "wrong root": _broken(
        lambda t, j: replace(t, token_ids=_ints([96 - int(t.token_ids[0]), *t.token_ids[1:]]))
    ),
    "unproposed": _broken(lambda t, j: replace(t, proposals=())),
    "over the budget": lambda j: always(replace(j, limits=replace(j.limits, nodes=30, depth=30))),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_trees_are_dropped_and_counted(redis_url: str, name: str) -> None:
    drafters = {"bad": ScriptedDrafter(MALFORMED[name]), "good": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters) as system:
        replies = await system.generate(PROMPT)
        bad, good = system.loop.pool.services
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
    assert bad.faults.malformed >= 7
    assert good.faults.malformed == 0
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"good"}


async def test_a_late_speculator_is_not_waited_for(redis_url: str) -> None:
    """It blocks until the request is over; the other one's drafts are used all the while."""
    release = threading.Event()

    def slow(job: DraftJob) -> TokenTree:
        release.wait(20)
        return always(job)

    drafters = {"slow": ScriptedDrafter(slow), "fast": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, deadline_s=0.05) as system:
        replies = await system.generate(PROMPT)
        late, _ = system.loop.pool.services
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert {row.name for row in replies[-1].summary.stats.speculators} == {"fast"}
        assert late.counters.answered == 0
        assert late.counters.missed >= 6
        release.set()
        await until(lambda: not late.busy)
        assert await system.tokens([1, 2, 3]) == greedy([1, 2, 3], 16)
        assert late.counters.answered > 0, "it takes part again"


async def test_a_failing_drafter_costs_only_its_drafts(redis_url: str) -> None:
    def fail(job: DraftJob) -> TokenTree:
        raise RuntimeError("out of luck")

    async with running_system(redis_url, {"bad": ScriptedDrafter(fail)}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)


@pytest.mark.parametrize("one_service", [False, True])
async def test_failed_drafts_are_counted_and_logged_by_name_but_not_each(
    redis_url: str, one_service: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(job: DraftJob) -> TokenTree:
        raise RuntimeError("out of luck")

    malformed = ScriptedDrafter(MALFORMED["foreign token"])
    drafters = {"good": ScriptedDrafter(first(1)), "bad": ScriptedDrafter(fail), "odd": malformed}
    async with running_system(redis_url, drafters, one_service=one_service) as system:
        for _ in range(3):
            assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        status = await system.stub.Status(generation_pb2.StatusRequest())
    failed = {speculator.name: speculator.failed for speculator in status.speculators}
    assert (failed["good"], failed["bad"]) == (0, 3), "once per request, as it is not asked again"
    assert failed["odd"] >= 7, "every tree"
    table = Console(width=200, record=True, file=io.StringIO())
    table.print(status_table("here", status))
    assert "3 failed" in table.export_text()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("a draft of")]
    assert len(lines) == 2, lines
    assert "speculator bad at" in lines[0] + lines[1]
    assert "(1 so far): the drafter failed: RuntimeError at test_failures.py:" in lines[0] + lines[1]
    assert "speculator odd at" in lines[0] + lines[1]
    assert "(1 so far): malformed tree: tree.token_ids" in lines[0] + lines[1]


async def test_a_refused_draft_is_not_asked_for_again(redis_url: str) -> None:
    drafter = ScriptedDrafter(lambda job: SpecInferError("not this one"))
    async with running_system(redis_url, {"bad": drafter}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
    assert len(drafter.jobs) == 1


async def test_in_one_service_only_the_speculator_that_refuses_is_left_out(redis_url: str) -> None:
    drafters = {
        "bad": ScriptedDrafter(lambda job: SpecInferError("not this one")),
        "good": ScriptedDrafter(first(1)),
    }
    async with running_system(redis_url, drafters, one_service=True) as system:
        replies = await system.generate(PROMPT)
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert await system.tokens([1, 2, 3]) == greedy([1, 2, 3], 16)
        await until(lambda: not system.loop.pool.services[0].refused)  # forgotten with its request
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"good"}
    assert len(drafters["bad"].jobs) == 2, "once per request"
    assert len(drafters["good"].jobs) > 10


async def test_a_service_that_comes_later_joins_and_so_does_another_in_its_place(redis_url: str) -> None:
    early, late = ScriptedDrafter(first(2)), ScriptedDrafter(first(1))
    async with running_system(redis_url, {"late": late, "early": early}, absent={"late"}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        service, _ = system.loop.pool.services
        status = await system.stub.Status(generation_pb2.StatusRequest())
        assert [(s.name, s.ready) for s in status.speculators] == [(service.address, False), ("early", True)]
        settings = ServiceSettings(listen=service.address, drain_seconds=0.1)
        joining = ServiceServer(settings, [])
        add_speculators(joining, EngineThread("joining"), {"late": late})
        await joining.start()
        await until(lambda: service.description is not None)
        replies = await system.generate(PROMPT)
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert {row.name for row in replies[-1].summary.stats.speculators} == {"early", "late"}
        assert system.loop.pool.names == ["early", "late"], "numbered as they came"
        await joining.stop()
        stranger = ServiceServer(settings, [])
        add_speculators(stranger, EngineThread("stranger"), {"stranger": late})
        await stranger.start()
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16), "the lost service costs nothing"
        await until(lambda: service.description is not None)
        replies = await system.generate(PROMPT)
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert {row.name for row in replies[-1].summary.stats.speculators} == {"early", "stranger"}
        assert system.loop.pool.names == ["early", "late", "stranger"], "no number is used again"
        status = await system.stub.Status(generation_pb2.StatusRequest())
        assert [(s.name, s.ready) for s in status.speculators] == [("stranger", True), ("early", True)]
        await stranger.stop()


async def test_a_speculator_that_dies_and_returns(redis_url: str) -> None:
    drafter = ScriptedDrafter(first(1))
    async with running_system(redis_url, {"a": drafter}) as system:
        speculator = system.loop.pool.services[0]
        await system.servers["a"].stop()
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        assert speculator.description is None
        assert speculator.counters.missed > 0
        asked = len(drafter.jobs)
        returned = ServiceServer(ServiceSettings(listen=speculator.address, drain_seconds=0.1), [])
        add_speculators(returned, EngineThread("returned"), {"a": drafter})
        await returned.start()
        await until(lambda: speculator.description is not None)
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        assert len(drafter.jobs) > asked
        await returned.stop()


async def test_a_verifier_that_forgets_everything_is_brought_up_to_date(redis_url: str) -> None:
    """What a restart of the verifier looks like: RESYNC, then the whole prefix again."""
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        task = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=200))
        for _ in range(5):
            steps = system.loop.steps
            await until(lambda steps=steps: system.loop.steps >= steps + 4 or task.done())  # type: ignore[misc]
            verifier = system.loop.verifier
            await verifier._stub.Release(
                common_pb2.ReleaseRequest(request_ids=list(system.loop.scheduler.states))
            )
        assert await task == greedy(PROMPT, 200)


async def test_a_verifier_that_stays_away_ends_the_requests_with_an_error(redis_url: str) -> None:
    async with running_system(redis_url, patience_s=0.3) as system:
        await system.servers["verifier"].stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await system.generate(PROMPT)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "verifier" in (caught.value.details() or "")
        status = await system.stub.Status(generation_pb2.StatusRequest())
        assert (status.verifier_ready, status.running) == (False, 0)


async def test_a_lost_verifier_is_logged_once_and_when_it_is_back(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_system(redis_url) as system:
        verify, calls = system.loop.verifier.verify, 0

        async def away(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if 2 < calls < 8:
                raise UnavailableError("verifier: gone")
            return await verify(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(system.loop.verifier, "verify", away)
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
    lines = [r.getMessage() for r in caplog.records if r.name == "gateway.clients.outage"]
    assert lines[0] == "the verifier does not answer (for 0 s): verifier: gone"
    assert lines[1].startswith("the verifier answers again after 0.")
    assert len(lines) == 2


async def test_a_redis_that_dies_ends_requests_and_shows_no_token_it_lost(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    redis = Child("redis", redis_command(port, tmp_path), tmp_path / "redis.log", {})
    wait_for_port(redis, f"127.0.0.1:{port}", timeout_s=20)
    async with running_system(f"redis://127.0.0.1:{port}/0") as system:
        request = request_for(PROMPT, max_new_tokens=450)
        call = system.stub.Generate(request)
        seen = list((await call.read()).token_ids)
        redis.kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _read_into(seen, call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "Redis does not answer" in (caught.value.details() or "")
        assert seen == greedy(PROMPT, 450)[: len(seen)]
        await until(lambda: system.verifier.held_requests == 0)
        assert system.loop.scheduler.running == 0
        with pytest.raises(grpc.aio.AioRpcError, match="Redis does not answer"):
            await system.generate(PROMPT)


async def test_a_failing_pass_fails_one_request_not_the_batch(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_system(redis_url) as system:
        runner = system.verifier.runner
        original = runner.forward

        def forward(segments):  # type: ignore[no-untyped-def]
            if any(96 in segment.delta for segment in segments):
                raise RuntimeError("device error")
            return original(segments)

        monkeypatch.setattr(runner, "forward", forward)
        good = [asyncio.create_task(system.tokens([3, 4, 5 + i])) for i in range(3)]
        with pytest.raises(grpc.aio.AioRpcError, match="the model failed: RuntimeError at"):
            await system.generate([96, 1])
        assert [await task for task in good] == [greedy([3, 4, 5 + i], 16) for i in range(3)]


async def test_a_client_that_hangs_up_is_cancelled_at_the_next_iteration(redis_url: str) -> None:
    drafter = ScriptedDrafter(first(1))
    async with running_system(redis_url, {"a": drafter}) as system:
        request = request_for(PROMPT, max_new_tokens=400)
        call = system.stub.Generate(request)
        await call.read()
        call.cancel()
        await until(lambda: system.loop.scheduler.running == 0)
        await until(lambda: [request_id_of(own) for own in drafter.released] == [request.request_id])
        await until(lambda: system.verifier.held_requests == 0)
        record = await system.store.load(request.request_id)
        assert record is not None
        assert len(record.tokens) < 400
        assert record.ending is not None
        assert record.ending.finish is FinishReason.CANCELLED


async def test_a_client_may_hang_up_just_when_its_request_has_ended(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last tokens are on their way to the store; nothing is left to cancel."""
    async with running_system(redis_url) as system:
        stored, append = asyncio.Event(), system.store.append

        async def slow_append(*arguments: object) -> object:
            await stored.wait()
            return await append(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(system.store, "append", slow_append)
        call = system.stub.Generate(request_for(PROMPT, max_new_tokens=1))
        try:
            await until(lambda: system.loop.steps > 0 and system.loop.scheduler.running == 0)
            call.cancel()
            await until(lambda: not any(feed.readers for feed in system.gateway.feeds._feeds.values()))
            await asyncio.sleep(0.05)  # what the handler raises is logged after that
        finally:
            stored.set()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_cancel_ends_the_stream_with_a_summary(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        request = request_for(PROMPT, max_new_tokens=400)
        call = system.stub.Generate(request)
        replies = [await call.read()]
        await system.stub.Cancel(generation_pb2.CancelRequest(request_id=request.request_id))
        while (reply := await call.read()) is not grpc.aio.EOF:
            replies.append(reply)
    assert replies[-1].summary.finish_reason == generation_pb2.FINISH_REASON_CANCELLED
    tokens = [t for r in replies for t in r.token_ids]
    assert tokens == greedy(PROMPT, 400)[: len(tokens)]


async def test_a_waiting_request_can_be_cancelled(redis_url: str) -> None:
    async with running_system(redis_url, max_batch=1) as system:
        running = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=60))
        await until(lambda: system.loop.scheduler.running == 1)
        request = request_for(PROMPT)
        waiting = asyncio.create_task(_collect(system.stub.Generate(request)))
        await until(lambda: system.loop.scheduler.waiting == 1)
        await system.stub.Cancel(generation_pb2.CancelRequest(request_id=request.request_id))
        (only,) = await waiting
        assert only.summary.finish_reason == generation_pb2.FINISH_REASON_CANCELLED
        assert await running == greedy(PROMPT, 60)


async def _read_into(seen: list[int], call: Any) -> None:
    while (reply := await call.read()) is not grpc.aio.EOF:
        seen += reply.token_ids


async def _collect(call: object) -> list[generation_pb2.GenerateReply]:
    return [reply async for reply in call]  # type: ignore[attr-defined]


async def test_a_speculator_with_another_tokenizer_is_refused(redis_url: str) -> None:
    other = ascii_tokenizer(swap=True)
    with pytest.raises(IncompatibleError) as caught:
        async with running_system(redis_url, {"odd": ScriptedDrafter(first(1))}, speculator_tokenizer=other):
            pass
    assert other.fingerprint() in str(caught.value)
    assert ascii_tokenizer().fingerprint() in str(caught.value)


async def test_a_speculator_that_does_not_fit_any_more_does_not_keep_a_verifier_from_being_driven(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its service was replaced by one with another tokenizer; then the lane has to begin anew."""
    async with running_system(redis_url, {"odd": ScriptedDrafter(first(1))}) as system:
        lane = system.loop

        async def misfit(directory: SpeculatorDirectory, service: Any) -> None:
            raise IncompatibleError("another tokenizer")

        monkeypatch.setattr(SpeculatorDirectory, "describe", misfit)
        await system.gateway.lanes.end_all()
        async with asyncio.timeout(10):
            assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        assert system.loop is not lane


async def test_waiting_in_vain_is_not_blamed_on_plain_decoding(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[StepReport] = []
    monkeypatch.setattr(Planner, "observe", lambda _, report: reports.append(report))
    release = threading.Event()

    def slow(job: DraftJob) -> TokenTree:
        release.wait(20)
        return always(job)

    async with running_system(redis_url, {"slow": ScriptedDrafter(slow)}, deadline_s=2.0) as system:
        assert await system.tokens([5], max_new_tokens=2) == greedy([5], 2)
        release.set()
    waited = [report for report in reports if report.choice.speculators]
    assert waited
    assert not any(report.drafts for report in waited)
    assert all(report.overhead_s < 2.0 for report in waited)


async def test_reading_what_was_missed_is_not_what_drafts_take(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty steps of plain decoding, then trees: the first draft reads the twenty tokens."""
    reports: list[StepReport] = []
    everybody = Choice(frozenset({0}), 4)
    monkeypatch.setattr(Planner, "observe", lambda _, report: reports.append(report))
    monkeypatch.setattr(Planner, "choose", lambda *_: everybody if len(reports) >= 20 else PLAIN)
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        # a step is learnt from while later ones are under way: on a busy machine several later
        assert await system.tokens([5], max_new_tokens=100) == greedy([5], 100)
    read = [draft.read for report in reports if report.choice.speculators for draft in report.drafts]
    assert read[0] >= 20
    assert read[1:3] == [0, 0]


async def test_health_answers_while_the_engine_computes(redis_url: str) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    hold, entered = threading.Event(), threading.Event()

    def slow(job: DraftJob) -> TokenTree:
        entered.set()
        hold.wait(20)
        return always(job)

    async with running_system(redis_url, {"slow": ScriptedDrafter(slow)}) as system:
        task = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=4))
        await until(entered.is_set)
        async with grpc.aio.insecure_channel(system.loop.pool.services[0].address) as channel:
            for service in ("", "specinfer.v1.Speculator"):
                reply = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=service), timeout=5
                )
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
        assert not task.done()
        hold.set()
        assert await task == greedy(PROMPT, 4)


async def test_reflection_lists_the_services(redis_url: str) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with (
        running_system(redis_url) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]))
        reply = await call.read()
        call.cancel()
    names = {service.name for service in reply.list_services_response.service}
    assert {"specinfer.v1.Generation", "grpc.health.v1.Health"} <= names


def _poisoned(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """From now on a function of the loop raises in every step that holds the request "poison"."""
    original = getattr(gateway.loop, where)

    def raises(entries: Any, *rest: Any) -> Any:
        if any(entry.request_id == "poison" for entry in entries):
            raise IndexError("a fault of ours")
        return original(entries, *rest)

    monkeypatch.setattr(gateway.loop, where, raises)


async def test_a_fault_in_a_step_ends_only_the_request_that_causes_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _poisoned(monkeypatch, "trees_to_verify")
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        poison = asyncio.create_task(system.tokens(PROMPT, request_id="poison", max_new_tokens=40))
        others = [system.tokens([3 + i, 5], max_new_tokens=24) for i in range(3)]
        assert await asyncio.gather(*others) == [greedy([3 + i, 5], 24) for i in range(3)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await poison
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16), "the loop goes on"
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "internal error: IndexError" in (caught.value.details() or "")
    assert any("request poison failed" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("where", ["enrol", "choose"])
async def test_a_fault_in_what_is_planned_costs_drafts_and_no_request(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def raises(*_: Any) -> None:
        raise ZeroDivisionError("a fault of ours")

    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        monkeypatch.setattr(Planner, where, raises)
        lane = system.loop
        texts = await asyncio.gather(*(system.tokens([3 + i, 5]) for i in range(3)))
        assert texts == [greedy([3 + i, 5], 16) for i in range(3)]
        assert system.loop is lane, "it goes on"
        assert lane.choice == PLAIN
    told = [record for record in caplog.records if "decode plainly" in record.getMessage()]
    assert len(told) == 1, "not a line for every step"


def _fault_for_poison(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """From now on one part of the gateway cannot bear the request "poison", whose stop string is a "~"."""

    def raises(original: Any, is_poison: Callable[..., bool]) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if is_poison(*arguments):
                raise IndexError("a fault of ours")
            return original(*arguments, **named)

        return wrapped

    owner, name, is_poison = {
        "plan": (CacheRoom, "most_nodes", lambda room, request: request.request_id == "poison"),
        "text": (TextStream, "push", lambda stream, *_: stream._stops == ("~",)),
        "write": (gateway.store.requests, "encode_progress", lambda item, *_: item.request_id == "poison"),
        "publish": (Feed, "extend", lambda feed, *_: feed.request.request_id == "poison"),
    }[where]
    monkeypatch.setattr(owner, name, raises(getattr(owner, name), is_poison))


async def rest_of(replies: Any) -> list[Any]:
    return [reply async for reply in replies]


@pytest.mark.parametrize("where", ["plan", "text", "write", "publish"])
async def test_a_fault_beside_a_step_ends_only_the_request_that_causes_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        lane = system.loop
        request = request_for(PROMPT, request_id="poison", max_new_tokens=150, stop_strings=["~"])
        poison = aiter(system.stub.Generate(request))
        others = [asyncio.create_task(system.tokens([3 + i, 5], max_new_tokens=40)) for i in range(3)]
        await anext(poison)
        _fault_for_poison(monkeypatch, where)
        assert await asyncio.gather(*others) == [greedy([3 + i, 5], 40) for i in range(3)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(rest_of(poison), 20)
        assert system.loop is lane, "it goes on"
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        await until(lambda: "poison" not in lane.deliveries.unfinished)
        assert not lane.scheduler.states
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "internal error: IndexError" in (caught.value.details() or "")
    failed = [record for record in caplog.records if "request poison failed" in record.getMessage()]
    assert [getattr(record, "request_id", "") for record in failed] == ["poison"]


async def test_what_operators_are_told_of_a_request_cannot_end_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(RequestMetrics, "progress", raises)
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        lane = system.loop
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        assert system.loop is lane


async def test_a_lane_that_cannot_plan_at_all_is_built_anew_and_loses_nothing(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that no single request causes: what the scheduler holds is thrown away, Redis has it all."""
    original, calls = Scheduler.plan, 0

    def raises_once(scheduler: Scheduler, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise IndexError("a fault of ours")
        return original(scheduler, *arguments)

    monkeypatch.setattr(Scheduler, "plan", raises_once)
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        lane = system.loop
        texts = await asyncio.gather(*(system.tokens([3 + i, 5], max_new_tokens=40) for i in range(3)))
        assert texts == [greedy([3 + i, 5], 40) for i in range(3)]
        assert system.loop is not lane


async def test_a_fault_in_what_is_learnt_costs_no_request(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(gateway.loop, "learn", raises)
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)


async def test_a_hung_verifier_is_given_up_and_found_again(redis_url: str) -> None:
    """It is silent in the middle of a request; the stream is dropped, a new one resynchronises."""
    async with running_system(redis_url, hung_s=0.3, patience_s=20.0) as system:
        original, hang, hung = system.verifier.verify, threading.Event(), threading.Event()

        def verify(jobs: Any) -> Any:
            if len(jobs[0].delta) == 1 and not hung.is_set():
                hung.set()
                hang.wait(2.0)
            return original(jobs)

        system.verifier.verify = verify  # type: ignore[method-assign]
        assert await system.tokens(PROMPT, max_new_tokens=24) == greedy(PROMPT, 24)
        assert hung.is_set()
