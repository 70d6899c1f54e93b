"""An exception in a step ends at most the request that causes it, never the gateway."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

import gateway.store.redis
from gateway.observability.metrics.requests import RequestCounters
from gateway.session import verifier
from gateway.session.token_stream import TokenStream
from specinfer.engine import step as engine_step
from specinfer.planning.choice import PLAIN
from specinfer.planning.table_planner import TablePlanner
from specinfer.scheduling.limits import CacheRoom
from specinfer.scheduling.scheduler import Scheduler
from specinfer.scheduling.text import TextStream
from tests.support.oracle import first, greedy
from tests.support.system import ScriptedDrafter, refused, request_for, running_system, until

PROMPT = [5, 17, 3, 88, 41]


def _raises(*_: Any, **__: Any) -> Any:
    raise IndexError("a fault of ours")


def _if(raises: Callable[..., bool], original: Any) -> Any:
    return lambda *given, **named: (_raises if raises(*given) else original)(*given, **named)


def _has_poison(entries: Any, *_: Any) -> bool:
    return any(entry.request_id == "poison" for entry in entries)


async def test_a_fault_in_a_step_ends_only_the_request_that_causes_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verifier, "sound_verdicts", _if(_has_poison, verifier.sound_verdicts))
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        poison = asyncio.create_task(system.tokens(PROMPT, request_id="poison", max_new_tokens=40))
        others = [system.tokens([3 + i, 5], max_new_tokens=24) for i in range(3)]
        assert await asyncio.gather(*others) == [greedy([3 + i, 5], 24) for i in range(3)]
        with refused(grpc.StatusCode.INTERNAL, "internal error: IndexError"):
            await poison
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16), "the loop continues"
    assert any("request poison ends by an internal fault" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((TablePlanner, "enrol"), (TablePlanner, "choose"), (engine_step, "trees_to_verify")),
        *((engine_step, "learn"), (RequestCounters, "progress")),
    ],
)
async def test_a_fault_in_planning_merging_learning_or_counting_ends_no_request(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: Any, name: str
) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        session, planned = system.loop, owner is not TablePlanner
        fault = _if(_has_poison, getattr(owner, name)) if name == "trees_to_verify" else _raises
        monkeypatch.setattr(owner, name, fault)
        poison = system.tokens(PROMPT, request_id="poison", max_new_tokens=40)
        texts = await asyncio.gather(poison, *(system.tokens([3 + i, 5]) for i in range(3)))
        assert texts == [greedy(PROMPT, 40), *(greedy([3 + i, 5], 16) for i in range(3))]
        assert system.loop is session, "the session continues"
        assert planned or session.machine.choice == PLAIN
    records = [record for record in caplog.records if "decodes without drafts" in record.getMessage()]
    assert planned or len(records) == 1, "not a line for every step"


def _fault_for_poison(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Make a part of the gateway raise for the request "poison", whose stop string is "~"."""

    owner, name, is_poison = {
        "plan": (CacheRoom, "max_nodes", lambda room, request, *_: request.request_id == "poison"),
        "text": (TextStream, "push", lambda stream, *_: stream._stops == ("~",)),
        "write": (gateway.store.redis, "encode_progress", lambda item, *_: item.request_id == "poison"),
        "publish": (TokenStream, "extend", lambda stream, *_: stream.request.request_id == "poison"),
    }[where]
    monkeypatch.setattr(owner, name, _if(is_poison, getattr(owner, name)))


async def rest_of(replies: Any) -> list[Any]:
    return [reply async for reply in replies]


@pytest.mark.parametrize("where", ["plan", "text", "write", "publish"])
async def test_a_fault_outside_a_step_ends_only_the_request_that_causes_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        session = system.loop
        request = request_for(PROMPT, request_id="poison", max_new_tokens=150, stop_strings=["~"])
        poison = aiter(system.stub.Generate(request))
        other_requests = [request_for([3 + i, 5], max_new_tokens=40) for i in range(3)]
        others = [aiter(system.stub.Generate(one)) for one in other_requests]
        for name in (poison, *others):
            await anext(name)  # the reply that accepts it, before any token
        _fault_for_poison(monkeypatch, where)
        texts = await asyncio.gather(*map(rest_of, others))
        assert [[t for reply in text for t in reply.token_ids] for text in texts] == [
            greedy([3 + i, 5], 40) for i in range(3)
        ]
        with refused(grpc.StatusCode.INTERNAL, "internal error: IndexError"):
            await asyncio.wait_for(rest_of(poison), 60)
        assert system.loop is session, "the session continues"
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        await until(lambda: "poison" not in session.persistence)
        assert not session.scheduler.states
    words = ("request poison ends by an internal fault", "request poison failed")
    failed = [record for record in caplog.records if record.getMessage().startswith(words)]
    assert [getattr(record, "request_id", "") for record in failed] == ["poison"]


async def test_a_session_that_cannot_plan_is_rebuilt_and_loses_nothing(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single request causes the fault: a new scheduler gets all requests from Redis."""
    original, calls = Scheduler.plan, 0

    def raises_once(scheduler: Scheduler, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise IndexError("a fault of ours")
        return original(scheduler, *arguments)

    monkeypatch.setattr(Scheduler, "plan", raises_once)
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        session = system.loop
        texts = await asyncio.gather(*(system.tokens([3 + i, 5], max_new_tokens=40) for i in range(3)))
        assert texts == [greedy([3 + i, 5], 40) for i in range(3)]
        assert system.loop is not session
