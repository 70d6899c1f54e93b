"""`GET /v1/watch`: the steps of a request as server-sent events, from any gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from specinfer.service.api_keys import make_key, write_keys
from tests.support.network.http_service import ASKED, CHAT, HttpService, http_service
from tests.support.oracle import first
from tests.support.system import ScriptedDrafter, another_gateway, running_system

WATCH = "/v1/watch"


@asynccontextmanager
async def events(http: HttpService, request_id: str, **headers: str) -> AsyncIterator[AsyncIterator[Any]]:
    """Yield the events of a request after the empty first one."""
    query = {"params": {"request_id": request_id}, "headers": headers}
    async with http.plain.stream("GET", WATCH, **query) as reply:  # type: ignore[arg-type]
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = (json.loads(line[6:]) async for line in reply.aiter_lines() if line.startswith("data: "))
        assert await anext(lines) == {"request_id": "", "step": None, "dropped": 0, "finish_reason": None}
        yield lines


async def test_the_steps_of_a_call_come_from_the_gateway_that_runs_it(redis_url: str) -> None:
    """There are two gateways, one without a verifier, and an unavailable one."""
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        settings = system.gateway.settings.model_copy(update={"metrics_port": 0})
        async with another_gateway(settings) as (_, _, other):
            gateways = f"127.0.0.1:1,{other},{system.address}"
            async with http_service(gateways) as http, events(http, "shown") as steps:
                body = {**ASKED, "max_tokens": 12, "temperature": 0}
                answer = await http.plain.post(CHAT, json=body, headers={"Idempotency-Key": "shown"})
                received = [event async for event in steps]
    text = answer.json()["choices"][0]["message"]["content"]
    assert "".join(token["text"] for event in received for token in event["step"]["tokens"]) == text
    assert [event["finish_reason"] for event in received[-2:]] == [None, "length"]
    step = received[0]["step"]
    child = step["nodes"][1]
    assert (child["parent"], round(child["chance"], 3)) == (0, 0.9)
    assert [{**p, "chance": round(p["chance"], 3)} for p in child["proposals"]] == [
        {"speculator": "a", "kind": "point", "chance": 0.9}
    ]
    assert step["accepted"] == [1]
    assert step["planner"]["speculators"] == ["a"]
    assert set(step["phases"]) == {"draft", "merge", "verify", "commit"}
    assert step["bonus"]["text"] == step["tokens"][-1]["text"]


async def test_bad_watches_are_refused(redis_url: str, tmp_path: Any) -> None:
    key, stored = make_key("alice")
    write_keys(tmp_path / "keys", [stored])
    async with (
        running_system(redis_url, api_keys=str(tmp_path / "keys")) as system,
        http_service(system.address) as http,
    ):
        bearer = {"Authorization": f"Bearer {key}"}
        for query, headers, status, param in [
            ({"request_id": "r"}, {}, 401, "Authorization"),
            ({"request_id": "r"}, {"Authorization": "Basic x"}, 401, "Authorization"),
            ({"request_id": "x" * 300}, bearer, 400, "request_id"),
            ({"request": "r"}, bearer, 400, "request"),
            ([("request_id", "r"), ("request_id", "s")], bearer, 400, "request_id"),
        ]:
            reply = await http.plain.get(WATCH, params=query, headers=headers)
            assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text
        async with events(http, "", **bearer) as steps:
            call = http.plain.post(CHAT, json={**ASKED, "max_tokens": 1}, headers=bearer)
            reply, event = await asyncio.gather(call, anext(steps))
            assert event["request_id"] == reply.headers["x-request-id"]


async def test_no_gateway_is_503() -> None:
    async with http_service("127.0.0.1:1") as http:
        reply = await http.plain.get(WATCH, params={"request_id": "r"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
