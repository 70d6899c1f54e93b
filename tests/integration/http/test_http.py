"""OpenAI's API over HTTP, with real clients and a tiny model: texts equal those of gRPC."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from specinfer import AsyncClient
from specinfer.drafters import DraftJob
from specinfer.service.api_keys import make_key, write_keys
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.jobs import EngineLimits
from tests.support.network.http_service import CHAT, HttpService, http_service
from tests.support.oracle import first
from tests.support.system import ScriptedDrafter, System, running_system, until

MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
LONG = {**ASKED, "max_tokens": 400, "stream": True}


@asynccontextmanager
async def served(redis_url: str, **options: Any) -> AsyncIterator[tuple[System, HttpService]]:
    drafters = {"a": ScriptedDrafter(first(1))} | options.pop("drafters", {})
    async with running_system(redis_url, drafters, **options) as system, http_service(system.address) as http:
        yield system, http


def wide(job: DraftJob) -> TokenTree:
    """Draft all allowed nodes as children of the root."""
    builder, nodes = TreeBuilder(job.context[-1]), job.limits.nodes
    builder.propose_points(0, list(range(3, 3 + nodes)), [0.1] * nodes)
    return builder.build()


async def over_grpc(system: System, **options: Any) -> str:
    async with AsyncClient(system.address) as client:
        return (await client.generate(MESSAGES, max_new_tokens=12, **options)).text


def data_of(lines: str) -> list[Any]:
    """Return the events of a stream, without the final [DONE]."""
    events = [line.removeprefix("data: ") for line in lines.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def text_in(events: list[Any]) -> str:
    return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])


async def test_the_openai_client_gets_the_answers_of_grpc(redis_url: str) -> None:
    async with served(redis_url) as (system, http), http.openai() as client:
        expected = await over_grpc(system)
        whole = await client.chat.completions.create(**ASKED)
        assert whole.choices[0].message.content == expected
        assert (whole.choices[0].finish_reason, whole.model) == ("length", "tiny")
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        assert whole.usage.total_tokens == 12 + whole.usage.prompt_tokens
        assert whole.id == f"chatcmpl-{whole._request_id}"

        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [chunk async for chunk in await client.chat.completions.create(**ASKED, **options)]
        *parts, last = chunks
        assert "".join(part.choices[0].delta.content or "" for part in parts) == expected
        assert parts[0].choices[0].delta.role == "assistant"
        assert [part.choices[0].finish_reason for part in parts[-2:]] == [None, "length"]
        assert (last.choices, last.usage.total_tokens) == ([], whole.usage.total_tokens)

        sampled = {**ASKED, "temperature": 0.9, "seed": 5, "top_p": 0.9, "extra_body": {"top_k": 20}}
        answer = await client.chat.completions.create(**sampled)
        same = await over_grpc(system, temperature=0.9, seed=5, top_p=0.9, top_k=20)
        assert answer.choices[0].message.content == same != expected


async def test_completions_of_texts_and_tokens(redis_url: str) -> None:
    """Choices of a prompt have different seeds; the first has the requested one."""
    async with served(redis_url) as (_, http), http.openai() as client:
        requested: Any = {"model": "tiny", "max_tokens": 6, "seed": 3}
        one = await client.completions.create(prompt="ab", **requested)
        assert (one.object, one.choices[0].finish_reason) == ("text_completion", "length")
        four = await client.completions.create(prompt=["ab", "cd"], n=2, **requested)
        texts = [choice.text for choice in four.choices]
        assert [choice.index for choice in four.choices] == [0, 1, 2, 3]
        assert texts[0] == one.choices[0].text
        assert len(set(texts)) == 4
        assert four.usage is not None
        assert (four.usage.prompt_tokens, four.usage.completion_tokens) == (4, 24)
        second = await client.completions.create(prompt="cd", **{**requested, "seed": 4})
        assert texts[3] == second.choices[0].text
        tokens = await client.completions.create(prompt=[67, 68], **requested)  # "ab"
        assert tokens.choices[0].text == texts[0]
        default = await client.completions.create(prompt="ab", model="tiny", temperature=0)  # no early end
        assert default.usage is not None
        assert default.usage.completion_tokens == 16

        chunks = [
            c
            async for c in await client.completions.create(prompt=["ab", "cd"], n=2, stream=True, **requested)
        ]
        streamed = ["".join(c.choices[0].text for c in chunks if c.choices[0].index == i) for i in range(4)]
        assert streamed == texts


async def test_speculation_can_be_chosen_and_its_statistics_are_returned(redis_url: str) -> None:
    async with served(redis_url) as (_, http), http.openai() as client:
        texts = {}
        for mode in ("off", "sequence", "tree"):
            answer = await client.chat.completions.create(**ASKED, extra_body={"speculation": mode})
            assert answer.usage is not None
            texts[mode] = (answer.choices[0].message.content, answer.usage.to_dict()["speculation"])
        assert len({text for text, _ in texts.values()}) == 1
        assert (texts["off"][1]["steps"], texts["off"][1]["drafted"]) == (12, 0)
        tree: Any = texts["tree"][1]
        assert tree["steps"] < 12
        assert tree["accepted"] == tree["speculators"]["a"]["accepted"] > 0
        assert sum(tree["acceptance_histogram"]) == tree["steps"]


async def test_the_answer_fills_the_context_unless_it_is_limited(redis_url: str) -> None:
    """Both names of the limit work. Trees are wide to the end."""
    limits, drafters = EngineLimits(max_context_len=64), {"b": ScriptedDrafter(wide)}
    async with served(redis_url, engine_limits=limits, drafters=drafters) as (_, http):
        body = {key: value for key, value in ASKED.items() if key != "max_tokens"}
        whole = (await http.plain.post(CHAT, json=body)).json()
        assert whole["usage"]["total_tokens"] == 64
        assert whole["choices"][0]["finish_reason"] == "length"
        short = (await http.plain.post(CHAT, json={**body, "max_completion_tokens": 2})).json()
        assert short["usage"]["completion_tokens"] == 2


async def test_stops_and_parts_and_roles(redis_url: str) -> None:
    async with served(redis_url) as (system, http):
        text = await over_grpc(system)
        answer = (await http.plain.post(CHAT, json={**ASKED, "stop": text[5]})).json()
        assert answer["choices"][0]["message"]["content"] == text[: text.index(text[5])]
        assert answer["choices"][0]["finish_reason"] == "stop"
        special = {**ASKED, "logit_bias": {"1": 100}, "stop": ["<bos>"]}  # its text is empty
        answer = (await http.plain.post(CHAT, json=special)).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert (answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]) == ("", 1)
        lines = (await http.plain.post(CHAT, json={**special, "stream": True})).text
        assert data_of(lines)[-1]["choices"][0]["finish_reason"] == "stop"
        assert text_in(data_of(lines)) == ""
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        said = []
        for role, content in (("developer", parts), ("system", "h\ni")):
            messages = [{"role": role, "content": "be brief"}, {"role": "user", "content": content}]
            answer = (await http.plain.post(CHAT, json={**ASKED, "messages": messages})).json()
            said.append((answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]))
        assert said[0] == said[1]


async def test_hundreds_of_streams_at_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream gets the complete answer to its own prompt."""
    # the check of the model's name takes long with so many calls
    monkeypatch.setattr("specinfer.client.gateways._UNARY_TIMEOUT_S", 120.0)
    count = 200
    async with (
        served(redis_url, max_waiting=400, max_batch=64, lease_s=30.0) as (system, http),
        AsyncClient(system.address) as direct,
    ):
        limits = httpx2.Limits(max_connections=count)
        async with httpx2.AsyncClient(base_url=http.url, timeout=120.0, limits=limits) as many:

            async def one(number: int) -> str:
                messages = [{"role": "user", "content": f"{number % 20}"}]
                body = {**ASKED, "messages": messages, "max_tokens": 4, "stream": True}
                reply = await many.post(CHAT, json=body)
                assert reply.status_code == 200, reply.text
                return text_in(data_of(reply.text))

            texts = await asyncio.gather(*map(one, range(count)))
        expected = [(await direct.generate(f"{number}", max_new_tokens=4)).text for number in range(20)]
        assert texts == [expected[number % 20] for number in range(count)]
        assert http.metric("calls_total", endpoint=CHAT, status="200") == count
        assert http.metric("calls_running") == 0


async def first_lines(lines: AsyncIterator[str]) -> str:
    """Return a stream's lines up to the first with text."""
    seen = ""
    async for line in lines:
        seen += line + "\n"
        if '"content":"' in line and '"content":""' not in line:
            return seen
    raise AssertionError(seen)


def cancelled(system: System) -> float:
    labels = {"finished_reason": "cancelled"}
    return system.registries["gateway"].get_sample_value("specinfer_request_success_total", labels) or 0


async def test_hanging_up_cancels(redis_url: str) -> None:
    """The HTTP service cancels at once; without it, the request would run for a minute more."""
    async with served(redis_url, linger_seconds=60.0) as (system, http):
        async with http.plain.stream("POST", CHAT, json=LONG) as stream:
            await first_lines(stream.aiter_lines())
        await until(lambda: cancelled(system) == 1)
        asking = asyncio.create_task(http.plain.post(CHAT, json={**LONG, "stream": False}))
        await until(lambda: system.loop.scheduler.running == 1)
        asking.cancel()
        await until(lambda: cancelled(system) == 2)
        assert http.metric("hung_up_total") == 2


async def test_a_request_cancelled_by_another_client_is_an_error(redis_url: str) -> None:
    mine = {"Idempotency-Key": "mine"}
    async with served(redis_url) as (system, http), AsyncClient(system.address) as client:
        async with http.plain.stream("POST", CHAT, json=LONG, headers=mine) as stream:
            lines = stream.aiter_lines()
            await first_lines(lines)
            await client.cancel("mine")
            rest = "".join([line async for line in lines])
        assert '"code":"cancelled"' in rest
        assert "[DONE]" not in rest
        again = await http.plain.post(CHAT, json=LONG, headers=mine)
        assert '"code":"cancelled"' in again.text
        again = await http.plain.post(CHAT, json={**LONG, "stream": False}, headers=mine)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "cancelled")


async def test_a_resumable_stream_continues_where_it_was_left(redis_url: str) -> None:
    body = {**LONG, "max_tokens": 60, "resumable": True, "stream_options": {"include_usage": True}}
    async with (
        served(redis_url, linger_seconds=60.0) as (system, http),
        http_service(system.address) as other,
    ):
        whole = data_of((await http.plain.post(CHAT, json=body)).text)
        async with http.plain.stream("POST", CHAT, json=body) as stream:
            seen = await first_lines(stream.aiter_lines())
            request_id = stream.headers["x-request-id"]
        *_, last = [line.removeprefix("id: ") for line in seen.splitlines() if line.startswith("id: ")]
        assert last.rpartition(":")[0] == request_id
        rest = await other.plain.post(CHAT, json=body, headers={"Last-Event-ID": last})
        assert rest.headers["x-request-id"] == request_id
        begun = [json.loads(line.removeprefix("data: ")) for line in seen.splitlines() if line[:4] == "data"]
        assert text_in(begun) + text_in(data_of(rest.text)) == text_in(whole)
        assert data_of(rest.text)[-1]["usage"]["completion_tokens"] == 60
        assert other.metric("resumed_total") == 1

        gone = await other.plain.post(CHAT, json=body, headers={"Last-Event-ID": "nobody:3"})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def test_keys_are_the_gateways(redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    (ours, kept), (theirs, other) = make_key("us"), make_key("them")
    write_keys(path, [kept, other])
    async with served(redis_url, api_keys=str(path)) as (_, http):
        async with http.openai(ours) as client:
            answer = await client.chat.completions.create(**ASKED)
            assert answer.choices[0].message.content
            assert [model.id for model in (await client.models.list()).data] == ["tiny"]
        async with http.openai("specinfer_wrong") as client:
            with pytest.raises(openai.AuthenticationError, match="no such key"):
                await client.chat.completions.create(**ASKED)
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        nobody = await http.plain.post(CHAT, json=ASKED)
        assert (nobody.status_code, nobody.json()["error"]["type"]) == (401, "authentication_error")
        basic = await http.plain.post(CHAT, json=ASKED, headers={"Authorization": "Basic abc"})
        assert (basic.status_code, basic.json()["error"]["param"]) == (401, "Authorization")
        taken = {"Authorization": f"Bearer {theirs}", "Last-Event-ID": f"{answer._request_id}:0"}
        resumed = await http.plain.post(
            CHAT, json={**ASKED, "stream": True, "resumable": True}, headers=taken
        )
        assert resumed.status_code == 404


async def test_calls_may_share_an_x_request_id(redis_url: str) -> None:
    """Proxies send one X-Request-Id with several calls: it is no unique id."""
    async with served(redis_url) as (system, http), AsyncClient(system.address) as client:
        trace = {"X-Request-Id": "trace-1"}
        one = await http.plain.post(CHAT, json=ASKED, headers=trace)
        two = await http.plain.post(CHAT, json={**ASKED, "max_tokens": 3}, headers=trace)
        assert (one.status_code, two.status_code) == (200, 200)
        assert one.headers["x-request-id"] == two.headers["x-request-id"] == "trace-1"
        ids = [reply.json()["id"].removeprefix("chatcmpl-") for reply in (one, two)]
        assert ids[0] != ids[1]
        assert all(request_id.startswith("trace-1.") for request_id in ids), "the gateway's log has it, too"
        assert (await client.attach(ids[1]).read()).text == two.json()["choices"][0]["message"]["content"]


async def test_an_idempotency_key_makes_a_call_repeatable(redis_url: str) -> None:
    async with served(redis_url) as (system, http), AsyncClient(system.address) as client:
        requested, mine = {**ASKED, "temperature": 1.0}, {"Idempotency-Key": "mine"}
        first_one, again = [
            await http.plain.post(CHAT, json=requested, headers=mine | {"X-Request-Id": name})
            for name in "ab"
        ]
        assert [first_one.headers["x-request-id"], again.headers["x-request-id"]] == ["a", "b"]
        assert first_one.json()["id"] == again.json()["id"] == "chatcmpl-mine"
        text = first_one.json()["choices"][0]["message"]["content"]
        assert again.json()["choices"][0]["message"]["content"] == text
        assert (await client.attach("mine").read()).text == text
        other = await http.plain.post(CHAT, json=ASKED, headers=mine)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "already_exists")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of calls, with `#` for numbers with a point."""
    lines = [line.getMessage() for line in caplog.records if line.name == "http_svc.access"]
    return [re.sub(r"\d+\.\d+", "#", line) for line in lines]


async def test_each_call_has_one_line(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    key, kept = make_key("alice")
    write_keys(tmp_path / "keys", [kept])
    body: dict[str, Any] = {"model": "tiny", "prompt": "hi", "max_tokens": 4}
    async with served(redis_url, api_keys=str(tmp_path / "keys"), eos=0) as (_, http):
        known = {"Authorization": f"Bearer {key}"}
        await http.plain.post("/v1/completions", json=body, headers=known)
        await http.plain.post("/v1/completions", json=body | {"stream": True, "n": 2}, headers=known)
        await http.plain.post("/v1/completions", json=body | {"prompt": ["hi", "ho"]}, headers=known)
        await http.plain.post("/v1/completions", json=body | {"seed": "x"}, headers=known)
        await http.plain.post("/v1/completions", json=body)
        await http.plain.get("/v1/x%0Ay")
        await http.plain.get("/health")
        await until(lambda: len(lines_of(caplog)) == 6)  # a line comes after its answer
    assert sorted(lines_of(caplog)) == [
        r"GET /v1/x\ny 404 caller -, # s",
        "POST /v1/completions 200 caller alice, 2+4 tokens, first after # s, # a step, # s",
        "POST /v1/completions 200 caller alice, 2+8 tokens, first after # s, # a step, # s",
        "POST /v1/completions 200 caller alice, 4+8 tokens, first after # s, # a step, # s",
        "POST /v1/completions 400 caller alice, # s",
        "POST /v1/completions 401 caller -, # s",
    ]


async def test_echo_begins_the_text_with_the_prompt(redis_url: str) -> None:
    async with served(redis_url, eos=0) as (_, http), http.openai() as client:
        asked: Any = {"model": "tiny", "prompt": ["hi", "ho"], "max_tokens": 4, "temperature": 0, "n": 2}
        plain = [choice.text for choice in (await client.completions.create(**asked)).choices]
        echoed = [choice.text for choice in (await client.completions.create(**asked, echo=True)).choices]
        prompts = ("hi", "hi", "ho", "ho")
        assert echoed == [prompt + text for prompt, text in zip(prompts, plain, strict=True)]
        ids = (await http.plain.post("/tokenize", json={"prompt": "hi"})).json()["tokens"]
        stream = await client.completions.create(**asked | {"prompt": ids, "n": 1}, echo=True, stream=True)
        assert "".join([event.choices[0].text async for event in stream]) == echoed[0]
        refused = await http.plain.post("/v1/completions", json=asked | {"echo": True, "logprobs": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")


async def test_a_model_without_tokens_for_gaps_refuses_them(redis_url: str) -> None:
    async with served(redis_url) as (_, http):
        (model,) = (await http.plain.get("/v1/models")).json()["data"]
        assert model["abilities"] == {"tools": False, "reasoning": False, "infill": False}
        assert [draft["name"] for draft in model["drafts"]] == ["a"]
        assert model["drafts"][0].keys() == {"name", "drafter", "model"}
        props = (await http.plain.get("/props")).json()
        assert (props["model_alias"], props["default_generation_settings"]["n_ctx"]) == ("tiny", 512)
        gap = {"input_prefix": "a", "input_suffix": "b"}
        for path, body in (
            ("/infill", gap),
            ("/v1/completions", {"model": "tiny", "prompt": "a", "suffix": "b"}),
        ):
            reply = await http.plain.post(path, json=body)
            assert (reply.status_code, "no fill-in-the-middle tokens" in reply.text) == (400, True), (
                reply.text
            )
        same = {"model": "tiny", "prompt": "a", "suffix": "", "max_tokens": 1}
        assert (await http.plain.post("/v1/completions", json=same)).status_code == 200
        ids = await http.plain.post("/v1/completions", json=same | {"prompt": [5], "suffix": "b"})
        assert ids.json()["error"]["param"] == "suffix"
        other = await http.plain.post("/infill", json=gap | {"grammar": "x"})
        assert (other.status_code, other.json()["error"]["param"]) == (400, "grammar")
