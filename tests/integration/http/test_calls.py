"""Calls of the HTTP service: errors of gateways, streams, models, limits, headers, its OpenAPI.

Gateways are fake ones that follow a script.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import grpc
import openai
import pytest

from http_svc.body.bodies import ChatBody
from http_svc.entry.bounds import MAX_BODY_BYTES
from specinfer import __version__
from specinfer.service.logs import DiscreetFormatter
from specinfer.text.chat.forms import ChatForm
from tests.integration.http.test_refusals import turn
from tests.support.network.fake_gateway import Turn, fake_gateways
from tests.support.network.http_service import (
    ASKED,
    CHAT,
    COMPLETIONS,
    JSON,
    MODEL,
    error_of,
    http_service,
    served,
)
from tests.support.system import until

Code = grpc.StatusCode
STATUSES = [
    (Turn(code=Code.INVALID_ARGUMENT, details="temperature = -1.0: must be"), 400, "temperature", None),
    (Turn(code=Code.INVALID_ARGUMENT, details="stop_strings = 17 entries: at most 16"), 400, "stop", None),
    (Turn(code=Code.INVALID_ARGUMENT, details="chat.messages[0].role = 'x'"), 400, "messages[0].role", None),
    (
        Turn(code=Code.INVALID_ARGUMENT, details="prompt + max_new_tokens = '7 + 9': over the context of 12"),
        *(400, "messages + max_completion_tokens", None),
    ),
    (Turn(code=Code.FAILED_PRECONDITION, details="the model has no chat template"), 400, None, None),
    (Turn(code=Code.UNAUTHENTICATED, details="authorization: no such key"), 401, "Authorization", None),
    (Turn(code=Code.PERMISSION_DENIED, details="priority"), 403, None, None),
    (Turn(code=Code.NOT_FOUND, details="request_id = 'r': no such request"), 404, "Idempotency-Key", None),
    (Turn(code=Code.ALREADY_EXISTS, details="request_id = 'r': in use"), 409, "Idempotency-Key", None),
    (Turn(code=Code.RESOURCE_EXHAUSTED, details="queue full", hint_ms="2300"), 429, None, "3"),
    (Turn(code=Code.RESOURCE_EXHAUSTED, details="too many calls"), 429, None, "1"),
    (Turn(code=Code.UNAVAILABLE, details="Redis does not answer", hint_ms="1000"), 503, None, "1"),
    (Turn(code=Code.UNAVAILABLE, details="it has ended", hint_ms="-1"), 503, None, None),
    (Turn(code=Code.DEADLINE_EXCEEDED, details="a proxy"), 504, None, None),
    (Turn(code=Code.INTERNAL, details="a step failed"), 500, None, None),
    (Turn(raises=True), 500, None, None),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_statuses_of_gateways(stream: bool) -> None:
    """A stream that has not begun is refused with the same status."""
    async with served(*(replace(case[0], replies=0) for case in STATUSES), Turn(skip=3, replies=0)) as (
        gateway,
        http,
    ):
        for case, status, param, retry_after in STATUSES:
            reply = await http.plain.post(CHAT, json={**ASKED, "stream": stream})
            error = error_of(reply)
            assert (reply.status_code, error["param"]) == (status, param), error
            assert reply.headers.get("retry-after") == retry_after
            assert case.details.rpartition(" = ")[2] in error["message"]
        reply = await http.plain.post(CHAT, json={**ASKED, "stream": stream})
        assert (reply.status_code, error_of(reply)["code"]) == (502, "broken_stream")
        await gateway.stop()
        reply = await http.plain.post(CHAT, json={**ASKED, "stream": stream})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")


async def test_a_full_queue_is_not_waited_for() -> None:
    """The caller gets a retry hint, although the service waits for lost gateways."""
    full = Turn(replies=0, code=Code.RESOURCE_EXHAUSTED, details="queue full", hint_ms="10")
    async with served(full, patience_seconds=30.0) as (gateway, http):
        assert (await http.plain.post(CHAT, json=ASKED)).status_code == 429
        assert len(gateway.calls) == 1


async def test_an_error_in_the_middle_of_a_stream_is_an_event() -> None:
    fault = Turn(replies=3, code=Code.INTERNAL, details="a step failed")
    async with served(fault, fault) as (_, http):
        reply = await http.plain.post(CHAT, json={**ASKED, "stream": True})
        *_, last = [line for line in reply.text.splitlines() if line]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == "a step failed"
        assert "[DONE]" not in reply.text
        async with http.openai() as client:
            stream = await client.chat.completions.create(**ASKED, stream=True)
            with pytest.raises(openai.APIError, match="a step failed"):
                _ = [chunk async for chunk in stream]


async def test_a_stream_begins_when_its_requests_are_accepted() -> None:
    """Proxies and clients wait for headers, before there is a token. Refusals have a status."""
    accepted = Turn(accepts=True, replies=0, hangs=True)
    full = Turn(replies=0, code=Code.RESOURCE_EXHAUSTED, details="queue full")
    async with served(accepted, accepted, full) as (gateway, http):
        async with http.plain.stream("POST", CHAT, json={**ASKED, "stream": True}) as reply:
            assert reply.status_code == 200
            assert "assistant" in await anext(aiter(reply.aiter_lines()))
        await until(lambda: len(gateway.cancelled) == 1)
        refused = await http.plain.post(CHAT, json={**ASKED, "stream": True, "n": 2})
        assert (refused.status_code, error_of(refused)["message"]) == (429, "queue full")


async def test_every_event_has_the_usage_if_requested() -> None:
    """As with vLLM, for its load generators: only with `include_usage`."""
    async with served(*[Turn(accepts=True)] * 3) as (_, http):
        for options, expected in (
            ({"include_usage": True, "continuous_usage_stats": True}, [7, 8, 9]),
            ({"include_usage": True}, [None] * 3),
            ({"continuous_usage_stats": True}, [None] * 3),
        ):
            reply = await http.plain.post(CHAT, json={**ASKED, "stream": True, "stream_options": options})
            events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
            totals = [event.get("usage") and event["usage"]["total_tokens"] for event in events]
            assert totals[:3] == expected
            parts = [event["usage"] for event in events if event["choices"] and event.get("usage")]
            assert all(part["prompt_tokens"] == 7 for part in parts)
            if parts:
                assert [part["completion_tokens"] for part in parts] == [*range(41), 40]
            assert ("usage" in events[-1]) == ("include_usage" in options)


async def test_a_gap_is_passed_on() -> None:
    body = {"input_prefix": "a", "input_suffix": "", "prompt": "c", "n_predict": 5, "n_indent": 4}
    body["input_extra"] = [{"filename": "x.py", "text": "x", "time": [1, 2]}, {"text": "y"}]  # as llama.vim
    async with served() as (gateway, http):
        whole = (await http.plain.post("/infill", json=body)).json()
        stream = await http.plain.post("/infill", json=body | {"stream": True})
        await http.plain.post("/infill", json=body | {"n_predict": 0})
    assert gateway.calls.pop().max_new_tokens == 1  # editors warm the cache so
    for call in gateway.calls:
        gap = call.infill
        assert (gap.prefix, gap.suffix, gap.begun, call.max_new_tokens) == ("a", "", "c", 5)
        assert [(file.name, file.text) for file in gap.files] == [("x.py", "x"), ("file", "y")]
    events = [json.loads(line.removeprefix("data: ")) for line in stream.text.split("\n\n") if line]
    assert "".join([event["content"] for event in events]) == whole["content"] != ""
    assert [event["stop"] for event in events] == [*[False] * (len(events) - 1), True]
    assert set(events[-1]) == set(whole)


async def test_headers_with_ids_that_cannot_be_one_are_refused() -> None:
    async with served() as (_, http):
        for name, value in (
            ("Idempotency-Key", ""),
            *product(("Idempotency-Key", "X-Request-Id"), ("x" * 201, "sch\u00f6n")),
        ):
            reply = await http.plain.post(CHAT, json=ASKED, headers={name: value.encode("latin-1")})
            assert (reply.status_code, error_of(reply)["param"]) == (400, name), value


async def test_comments_break_the_silence_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not get comments as events."""
    monkeypatch.setattr("http_svc.streaming._QUIET_S", 0.05)
    async with served(Turn(replies=3, hangs=True), Turn(replies=3, hangs=True)) as (_, http):
        async with http.plain.stream("POST", CHAT, json={**ASKED, "stream": True}) as reply:
            lines = (line async for line in reply.aiter_lines() if line)
            while await anext(lines) != ": waiting":
                pass
            assert await anext(lines) == ": waiting"
        async with http.openai() as client:
            stream = await client.chat.completions.create(**ASKED, stream=True)
            text = ""
            while len(text) < len("<0><1><2>"):
                text += (await anext(aiter(stream))).choices[0].delta.content or ""
            ended, response = asyncio.create_task(anext(aiter(stream))), stream.response
            size = response.num_bytes_downloaded
            await until(lambda: response.num_bytes_downloaded > size + 2 * len(": waiting"))
            assert not ended.done()
            ended.cancel()
            await stream.close()


async def test_a_model_has_the_configured_names() -> None:
    async with served(served_model_name="gpt-4o, mini") as (_, http):
        listed = (await http.plain.get("/v1/models")).json()["data"]
        assert [(model["id"], model["max_model_len"]) for model in listed] == [("gpt-4o", 512), ("mini", 512)]
        assert (await http.plain.get("/v1/models/mini")).json() == listed[1]
        whole = await http.plain.post(CHAT, json={**ASKED, "model": "mini"})
        streamed = await http.plain.post(CHAT, json={**ASKED, "model": "mini", "stream": True})
        assert whole.json()["model"] == "gpt-4o"
        assert '"model":"gpt-4o"' in streamed.text.replace(" ", "")
        assert '"mini"' not in streamed.text
        for name in ("tiny", "gpt-4o, mini", ""):
            reply = await http.plain.post(CHAT, json={**ASKED, "model": name})
            assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")


async def test_models_and_paths_that_do_not_exist() -> None:
    async with served() as (_, http):
        reply = await http.plain.post(CHAT, json={**ASKED, "model": "gpt-4"})
        error = error_of(reply)
        assert (reply.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert error["message"] == "model = 'gpt-4': not served here, only 'tiny'"
        assert (await http.plain.get("/v1/models/gpt-4")).status_code == 404
        assert error_of(await http.plain.get("/v1/embeddings"))["message"] == "GET /v1/embeddings: Not Found"
        assert (await http.plain.get(CHAT)).status_code == 405


async def test_bounds_are_named() -> None:
    async with served(Turn(replies=0, hangs=True), max_calls=1) as (gateway, http):
        running = asyncio.create_task(http.plain.post(CHAT, json=ASKED))
        await gateway.reached.wait()
        reply = await http.plain.post(CHAT, json=ASKED)
        error = error_of(reply)
        assert (reply.status_code, error["code"], reply.headers["retry-after"]) == (503, "overloaded", "1")
        assert error["message"] == "max_calls = 1: that many calls run already"
        assert (await http.plain.post("/tokenize", json={"prompt": "a"})).status_code == 503
        assert (await http.plain.get("/metrics")).status_code == 200
        running.cancel()
        await until(lambda: http.metric("calls_running") == 0)

        large = json.dumps(turn(content="x" * MAX_BODY_BYTES))
        large_reply = await http.plain.post(CHAT, content=large, headers=JSON)

        async def without_length() -> AsyncIterator[bytes]:
            yield large.encode()

        streamed = await http.plain.post(CHAT, content=without_length(), headers=JSON)
        for reply in (large_reply, streamed):
            error = error_of(reply)
            assert (reply.status_code, error["param"]) == (413, "body")
            assert "at most 4 MiB" in error["message"]


@pytest.mark.parametrize("last", ["r", "r:", ":5", "r:-1", f"r:{2**32}"])
async def test_an_event_id_that_is_none(last: str) -> None:
    async with served() as (_, http):
        body = {**ASKED, "stream": True, "resumable": True}
        reply = await http.plain.post(CHAT, json=body, headers={"Last-Event-ID": last})
        assert (reply.status_code, error_of(reply)["param"]) == (400, "Last-Event-ID")
        reply = await http.plain.post(CHAT, json=ASKED, headers={"Last-Event-ID": "r:5"})
        assert "only with resumable" in error_of(reply)["message"]


async def test_the_trace_context_and_the_key_are_passed_on() -> None:
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    async with served() as (gateway, http):
        headers = {"traceparent": trace, "Authorization": "Bearer abc"}
        assert (await http.plain.post(CHAT, json=ASKED, headers=headers)).status_code == 200
        row = gateway.metadata[-1]
        assert (row["traceparent"], row["authorization"]) == (trace, "Bearer abc")


async def test_pages_of_chosen_origins_may_call() -> None:
    requested = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    requested["Access-Control-Request-Headers"] = "authorization,content-type"
    async with served(cors_origins="https://chat.example, https://b.example") as (_, http):
        allowed = await http.plain.request("OPTIONS", CHAT, headers=requested)
        assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
        refused = await http.plain.post(CHAT, json={}, headers={"Origin": "https://chat.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (
            400,
            requested["Origin"],
        )
        foreign = await http.plain.request(
            "OPTIONS", CHAT, headers={**requested, "Origin": "https://c.example"}
        )
        assert "access-control-allow-origin" not in foreign.headers
    async with served() as (_, http):
        nobody = await http.plain.post(CHAT, json=ASKED, headers={"Origin": "https://chat.example"})
        assert "access-control-allow-origin" not in nobody.headers


def documented_paths_and_statuses() -> tuple[set[str], set[str]]:
    """Return the paths and error statuses in the tables of docs/http.md."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "http.md").read_text()
    paths = page.partition("| path | what |")[2].partition("\n## ")[0]
    named = re.findall(r"`(?:GET |POST )?(/[\w/.]*)", paths)
    errors = re.findall(
        r"^\| ([\d, ]+) \|", page.partition("\n## Errors")[2].partition("\n## ")[0], re.MULTILINE
    )
    return {path.removesuffix("/NAME") for path in named}, {
        field.strip() for row in errors for field in row.split(",")
    }


async def test_the_api_describes_itself() -> None:
    async with served() as (_, http):
        description = (await http.plain.get("/openapi.json")).json()
        assert {CHAT, COMPLETIONS, "/v1/models", "/health", "/metrics"} <= set(description["paths"])
        schemas = description["components"]["schemas"]
        fields = schemas["ChatBody"]["properties"]
        assert "speculation" in fields
        assert fields["min_tokens"] == {"enum": [0, None], "title": "Min Tokens"}
        assert fields["user"]["description"] == "Ignored."
        assert not {"HTTPValidationError", "ValidationError"} & set(schemas)
        for path, methods in description["paths"].items():
            for method in methods.values():
                assert "422" not in method["responses"]
                assert (method["security"] == []) == (path in ("/health", "/metrics"))
        answers = description["paths"][CHAT]["post"]["responses"]
        assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
        paths, statuses = documented_paths_and_statuses()
        assert set(answers) - {"200"} == statuses
        assert {path.partition("/{")[0] for path in description["paths"]} == paths - {"/", "/openapi.json"}
        assert (await http.plain.get("/version")).json() == {"version": __version__}


async def test_an_internal_error_shows_no_text_of_the_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception quotes the request; log and answer do not."""

    def fail(body: ChatBody, form: ChatForm, request_id: str) -> None:
        raise KeyError(str(body.messages))

    monkeypatch.setattr("http_svc.handlers.chat_requests", fail)
    async with served() as (_, http):
        reply = await http.plain.post(CHAT, json={**ASKED, **turn(content="a secret owl")})
        assert (reply.status_code, error_of(reply)["message"]) == (500, "internal error: KeyError")
    formatter = DiscreetFormatter("%(message)s")
    lines = [formatter.format(record) for record in caplog.records if record.name.startswith("uvicorn")]
    assert any("KeyError" in line for line in lines)
    assert not [line for line in lines if "owl" in line]


async def test_health_follows_the_gateways() -> None:
    """The fake gateways have no health service."""
    async with served() as (gateway, http):
        reply = await http.plain.get("/health")
        assert reply.status_code == 503
        assert error_of(reply)["message"].startswith(f"gateway at {gateway.address}: ")


async def test_calls_that_exceed_the_drain_time_get_an_error() -> None:
    hanging = [Turn(replies=3, hangs=True), Turn(replies=0, hangs=True)]
    async with fake_gateways(hanging) as (gateway,):
        gateway.states.append(MODEL)
        async with http_service(gateway.address, drain_seconds=0.0) as http:
            streams = asyncio.create_task(http.plain.post(CHAT, json={**ASKED, "stream": True}))
            await gateway.reached.wait()
            gateway.reached.clear()
            whole = asyncio.create_task(http.plain.post(CHAT, json=ASKED))
            await gateway.reached.wait()
            await http.server.stop()
            *_, last = [line for line in (await streams).text.splitlines() if line]
            assert (
                json.loads(last.removeprefix("data: "))["error"]["message"] == "this service is shutting down"
            )
            assert ((await whole).status_code, error_of(await whole)["code"]) == (503, "unavailable")
        assert len(gateway.cancelled) == 2
