"""`specinfer serve`: a single process with OpenAI's API and a store in a file."""

import asyncio
import itertools
import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx2
import pytest
import torch
from prometheus_client import CollectorRegistry

from all_in_one.app import drain, serve, verifier
from all_in_one.settings import ServeSettings
from gateway.app import Gateway
from http_svc.app import HttpServer
from specinfer import LLM, SamplingParams
from specinfer.cli.local.processes import free_ports
from specinfer.errors import SettingError
from specinfer.service.api_keys import make_key, write_keys
from specinfer.service.threads import EngineThread
from tests.chaos.model_directory import write_model
from tests.chaos.service import Service
from tests.support.system import until
from verifier_svc.settings import VerifierSettings

PROMPT = [2 + n % 7 for n in range(24)]
"""Repetitive prompt, for n-grams."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "tiny")


def server(model: Path, folder: Path, *flags: str) -> Service:
    """Return a server of a tiny model, not started yet."""
    (port,) = free_ports(1)
    given = ["--model", str(model), "--dtype", "float32", "--kv-tokens", "4096", *flags]
    command = [sys.executable, "-m", "all_in_one", "--listen", f"127.0.0.1:{port}", *given]
    return Service("server", "server", port, command, folder, {"OMP_NUM_THREADS": "1"})


@dataclass(frozen=True)
class Served:
    """Server with API keys and a store, shared by the tests."""

    service: Service
    key: str
    store: Path

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        """Yield a client that sends the key."""
        address = f"http://127.0.0.1:{self.service.port}"
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx2.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
            yield client


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, (key, hidden) = tmp_path_factory.mktemp("server"), make_key("alice")
    keys, store = folder / "keys", folder / "store"
    write_keys(keys, [hidden])
    flags = ["--served-model-name", "tiny", "--api-keys", str(keys), "--vllm-metrics", "--store", str(store)]
    service = server(model, folder, *flags)
    service.start()
    asyncio.run(service.loaded())
    yield Served(service, key, store)
    asyncio.run(service.stop())


def body(**options: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0, **options}


LONG = body(max_tokens=300, ignore_eos=True)
FEW_WRITES = 12 * 4120
"""Bytes of the store's log that a request and a few of its tokens need: 12 pages."""
STREAMED = {**LONG, "stream": True, "resumable": True}


async def text_of_plain_answer(client: httpx2.AsyncClient) -> str:
    reply = (await client.post("/v1/completions", json=LONG)).json()
    text: str = reply["choices"][0]["text"]
    return text


def text_of_event(line: str) -> str:
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return "".join(choice["text"] for choice in choices)


async def metrics_with_drafts(client: httpx2.AsyncClient) -> str:
    """Send requests until the metrics count drafted tokens, and no waiting request.

    Gauges are updated twice a second, and the planner decides by measured times which steps have drafts.
    """
    idle = '\nvllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0'
    async with asyncio.timeout(120):
        while True:
            await client.post("/v1/completions", json=body())
            metrics = (await client.get("/metrics")).text
            drafted = re.findall(r"^specinfer_spec_decode_num_draft_tokens\S* (\S+)$", metrics, re.MULTILINE)
            if idle in metrics and sum(map(float, drafted)) > 0:
                return metrics


async def test_one_process_gives_the_tokens_of_llm_and_all_metrics(model: Path, served: Served) -> None:
    options = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 0.8, "seed": 4, "speculation": "off"}]
    params = [
        SamplingParams(max_tokens=40, temperature=one.get("temperature", 0.0), seed=one.get("seed"))
        for one in options
    ]
    with LLM(str(model), dtype="float32") as llm:
        expected = [llm.generate({"prompt_token_ids": PROMPT}, one)[0].outputs[0].text for one in params]
    async with served.client() as client:
        keyless = {"Authorization": ""}
        assert (await client.post("/v1/completions", json=body(), headers=keyless)).status_code == 401
        for at_once in (1, 2):  # also in a batch
            replies = await asyncio.gather(
                *(client.post("/v1/completions", json=body(**one)) for one in options * at_once)
            )
            texts = [reply.json()["choices"][0]["text"] for reply in replies]
            assert texts == expected * at_once
        assert (await client.get("/health")).json() == {"status": "ok"}
        metrics = await metrics_with_drafts(client)
    for name in (
        "generation_tokens_total",
        "verifier_step_seconds_count",
        "http_calls_total",
        "build_info",
    ):
        assert f"\nspecinfer_{name}" in metrics, name
    assert metrics.count("# TYPE specinfer_build_info") == 1


async def test_anthropics_client_gets_the_answers_of_conversations(served: Served) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": "hi"}]}
    greedy: Any = asked | {"extra_body": {"temperature": 0}}
    async with served.client() as plain:
        reply = (await plain.post("/v1/chat/completions", json=asked | {"temperature": 0})).json()
    url = f"http://127.0.0.1:{served.service.port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key=served.key, max_retries=0) as client:
        answer = await client.messages.create(**greedy)
        async with client.messages.stream(**greedy) as stream:
            text = "".join([part async for part in stream.text_stream])
            last = await stream.get_final_message()
    said = reply["choices"][0]["message"]["content"]
    assert [block.text for block in answer.content if block.type == "text"] == [said]
    assert (text, last.stop_reason, last.usage.output_tokens) == (said, answer.stop_reason, 40)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**greedy)
    key = {"Authorization": "", "x-api-key": served.key}
    async with served.client() as plain:
        assert (await plain.post("/v1/messages", json=asked, headers=key)).status_code == 200
    line = "http_svc.access: POST /v1/messages 200 caller alice, "
    await until(lambda: served.service.log.read_text().count(line) == 3)
    assert "gateway.access" not in served.service.log.read_text(), "one line a call"


async def test_a_stream_continues_after_the_process_was_killed(served: Served) -> None:
    """With `--store`, the rest of the stream has no token twice, and none is missing."""
    text, last = "", ""
    async with served.client() as client:
        whole = await text_of_plain_answer(client)
        async with client.stream("POST", "/v1/completions", json=STREAMED) as reply:
            async for line in reply.aiter_lines():
                text += text_of_event(line)
                if line.startswith("id: "):
                    last = line.removeprefix("id: ")
                elif len(text) > 20:
                    break
            await served.service.kill()
        served.service.start()
        await served.service.loaded()
        reply = await client.post("/v1/completions", json=STREAMED, headers={"Last-Event-ID": last})
    assert reply.text.rstrip().endswith("data: [DONE]")
    assert text + "".join(map(text_of_event, reply.text.splitlines())) == whole


async def test_a_stream_waits_while_the_disk_of_the_store_is_full(served: Served) -> None:
    """Tokens are sent only after they are stored; health is 503, and no request fails.

    The disk is full after the request's record and a few of its tokens.
    """

    def allow(size: int) -> None:
        resource.prlimit(served.service.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    async with served.client() as client:

        async def health_is(status: int) -> None:
            while (await client.get("/health")).status_code != status:  # noqa: ASYNC110  # its own state
                await asyncio.sleep(0.02)

        log = served.store.with_name("store-wal")
        whole = await text_of_plain_answer(client)
        allow(log.stat().st_size + FEW_WRITES)
        lines = list[str]()
        async with client.stream("POST", "/v1/completions", json=STREAMED) as reply:

            async def read() -> None:
                lines.extend([line async for line in reply.aiter_lines()])

            reading = asyncio.create_task(read())
            await health_is(503)
            assert not reading.done()
            refused = await client.post("/v1/completions", json=body())
            assert refused.status_code == 503
            allow(resource.RLIM_INFINITY)
            await health_is(200)
            await reading
    assert lines[-2:] == ["data: [DONE]", ""]
    assert "".join(map(text_of_event, lines)) == whole


async def test_bad_settings_are_errors_before_the_model_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("all_in_one.app.verifier", load)
    (tmp_path / "broken").write_text("my diary\n\n")
    os.mkfifo(tmp_path / "fifo")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags, words in [
            (["--listen", address], f"listen = '{address}'"),
            (["--api-keys", str(tmp_path / "none")], "api_keys"),
            (["--chat-template", str(tmp_path / "none")], "chat_template"),
            (["--store", str(tmp_path / "broken")], "store = .*broken':"),
            (["--store", str(tmp_path / "fifo")], "store = .*fifo':"),
            (
                ["--draft", "sssm"],
                "draft = 'sssm':",
            ),
            (["--draft", "ngram,beem=3"], "beem = '3'"),
            (["--store", "/proc/none/store"], "store = '/proc/none/store':"),
        ]:
            given = ["--model", str(model), "--listen", "127.0.0.1:0", *flags]
            with pytest.raises(SettingError, match=words):
                await serve(ServeSettings.load("serve", given))


class SlowDrain:
    """Gateway that takes `takes_s` to drain, and HTTP service that records its drain time."""

    def __init__(self, takes_s: float) -> None:
        self._takes_s, self.left_s = takes_s, -1.0

    async def drain(self) -> None:
        await asyncio.sleep(self._takes_s)

    async def stop(self, seconds: float) -> None:
        self.left_s = seconds


async def test_gateway_and_http_service_share_the_drain_time() -> None:
    """A pod is killed after the drain time, so both share it."""
    late, early = SlowDrain(0.05), SlowDrain(0.0)
    for ending, seconds in ((late, 0.05), (early, 1000.0)):
        await drain(cast(Gateway, ending), cast(HttpServer, ending), seconds)
    assert late.left_s == 0.0
    assert early.left_s > 900


async def test_threads_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class LoadedError(Exception):
        pass

    def load(settings: VerifierSettings) -> None:
        assert settings.threads == 1
        raise LoadedError

    given = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr("verifier_svc.app.load_runner", load)
    thread = EngineThread("engine")
    with pytest.raises(LoadedError):
        async with verifier(ServeSettings.load("serve", ["--threads", "1"]), thread, CollectorRegistry()):
            pass
    thread.stop()
    assert given == [1]


BAD_FLAGS = [["--kv-tokens", "3"], ["--model", "none.gguf"], ["--dtype", "int3"], ["--weights", "q9"]]
START_WITH_EACH = """
import sys
from all_in_one.__main__ import main
for flags in zip(sys.argv[1::2], sys.argv[2::2]):
    try: main(['--listen', '127.0.0.1:0', *flags])
    except SystemExit as end: print(end.code, 'torch' in sys.modules)
"""


def test_bad_flags_are_named_before_torch_is_loaded() -> None:
    command = [sys.executable, "-c", START_WITH_EACH, *itertools.chain(*BAD_FLAGS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n" * len(BAD_FLAGS)
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    for printed, (_, value) in zip(errors, BAD_FLAGS, strict=True):
        assert value in printed
