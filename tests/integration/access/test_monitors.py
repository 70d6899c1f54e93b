"""Calls of monitors and of clients that write paths and keys in their own way; shares of keys; unread answers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from http_svc.call import Call
from specinfer.client import Piece
from specinfer.request.answer import Answer, TokenLogprob, TokenLogprobs
from specinfer.v1 import common_pb2, generation_pb2
from tests.support.network.fake_gateway import fake_gateways
from tests.support.network.http_service import ASKED, CHAT, JSON, MODEL, error_of, http_service, served
from tests.support.system import until

GET = ("/health", "/metrics", "/version", "/v1/models", "/v1/models/tiny", "/openapi.json", "/", "/nowhere")


@pytest.mark.parametrize("path", GET)
async def test_head_is_get_without_a_body(path: str) -> None:
    async with served() as (_, http):
        whole, head = await http.plain.get(path), await http.plain.head(path)
        assert (head.status_code, head.headers["content-type"]) == (
            whole.status_code,
            whole.headers["content-type"],
        )
        assert head.content == b""
        assert (await http.plain.get(path)).status_code == whole.status_code, "the connection goes on"


async def test_head_of_a_stream_ends() -> None:
    async with served() as (_, http):
        assert (await http.plain.head("/v1/watch", params={"request_id": "r"})).content == b""


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        *[(path, "GET, HEAD, OPTIONS") for path in ("/health", "/v1/models/", "/openapi.json")],
        (CHAT, "POST, OPTIONS"),
    ],
)
async def test_options_and_wrong_methods_name_the_methods(path: str, allow: str) -> None:
    async with served() as (_, http):
        options, wrong = await http.plain.options(path), await http.plain.delete(path)
        assert (options.status_code, options.content, wrong.status_code) == (204, b"", 405)
        assert options.headers["allow"] == wrong.headers["allow"] == allow
        assert (await http.plain.options("/nowhere")).status_code == 404


async def test_a_path_may_have_slashes_too_many() -> None:
    async with served() as (_, http):
        for path in ("/page", "/page/"):  # redirects between both would not end
            assert (await http.plain.get(path)).status_code == 404, path
        for path in ("/version/", f"{http.url}//v1//models/", "/v1/models/tiny/"):
            assert (await http.plain.get(path)).status_code == 200, path
        assert (await http.plain.post(f"{http.url}/{CHAT}/", json=ASKED)).status_code == 200


@pytest.mark.parametrize("given", ["Bearer", "Basic eDp5", "", "x", "Bearer \xe9"])
async def test_any_authorization_is_taken_where_no_key_is_needed(given: str) -> None:
    async with served() as (gateway, http):
        headers = {"Authorization": given.encode("latin-1")}
        assert (await http.plain.post(CHAT, json=ASKED, headers=headers)).status_code == 200
        assert (await http.plain.get("/v1/models", headers=headers)).status_code == 200
        assert not any("authorization" in call for call in gateway.metadata)


async def test_models_show_the_defaults_of_sampling() -> None:
    async with served() as (gateway, http):
        gateway.states[:] = [
            generation_pb2.StatusReply(
                model="tiny", default_sampling=common_pb2.SamplingParams(temperature=0.6, top_k=20)
            )
        ]
        (model,) = (await http.plain.get("/v1/models")).json()["data"]
        assert model["default_sampling_params"] == {"temperature": 0.6, "top_k": 20}


async def test_one_key_cannot_take_all_calls_with_slow_bodies() -> None:
    async with fake_gateways([]) as (gateway,):
        gateway.states.append(MODEL)
        async with http_service(gateway.address, max_calls=10) as http:
            host, port = http.url.removeprefix("http://").split(":")
            head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer evil\r\n"
            head += "Content-Length: 99\r\n\r\n{"
            slow = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
            for _, writer in slow:
                writer.write(head.encode())
            await until(lambda: http.metric("calls_total", endpoint=CHAT, status="429") == 4)
            refused = await http.plain.post(CHAT, json=ASKED, headers={"Authorization": "Bearer evil"})
            assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
            other = await http.plain.post(CHAT, json=ASKED, headers={"Authorization": "Bearer good"})
            assert other.status_code == 200
            for _, writer in slow:
                writer.close()
            await until(lambda: http.metric("calls_running") == 0)
            again = await http.plain.post(CHAT, json=ASKED, headers={"Authorization": "Bearer evil"} | JSON)
            assert again.status_code == 200


class EndlessStream:
    """A stream of pieces without end; `read` counts them."""

    request_id = "r"

    def __init__(self) -> None:
        self.read, self.answer = 0, Answer()

    async def accepted(self) -> None:
        pass

    def __aiter__(self) -> "EndlessStream":
        return self

    async def __anext__(self) -> Piece:
        self.read += 1
        self.answer.token_logprobs.append(TokenLogprobs(TokenLogprob(1, b"a", 0.0)))
        return Piece(self.read, (1,), "a")

    async def aclose(self) -> None:
        pass


async def test_an_unread_stream_is_not_read_further_from_the_gateway() -> None:
    client: Any = SimpleNamespace(abandon=lambda _: asyncio.sleep(0))
    streams: list[Any] = [EndlessStream() for _ in range(3)]
    call = Call(client, streams, lingers=False, whole=False)
    for _ in range(1000):
        await asyncio.sleep(0)
    unread = sum(stream.read for stream in streams)
    assert unread <= 20
    for _ in range(100):
        await call.next()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sum(stream.read for stream in streams) == unread + 100, "it goes on as it is read"
    assert all(len(stream.answer.token_logprobs) <= 1 for stream in streams), "events have them"
    await call.close()
