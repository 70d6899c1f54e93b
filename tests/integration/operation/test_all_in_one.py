"""`specinfer serve`: one process with OpenAI's API, whose tokens are those of `LLM`, and whose file outlives it."""

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
import torch
from prometheus_client import CollectorRegistry

from all_in_one.__main__ import drain, serve, verifier
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
from tests.support.models.gguf_models import write_model_file
from verifier_svc.settings import VerifierSettings

PROMPT = [2 + n % 7 for n in range(24)]
"""Repetitive, so that n-grams find something."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "tiny")


def server(model: Path, folder: Path, *flags: str) -> Service:
    """The server of a tiny model, not started yet."""
    (port,) = free_ports(1)
    given = ["--model", str(model), "--dtype", "float32", "--kv-tokens", "4096", *flags]
    command = [sys.executable, "-m", "specinfer.cli", "serve", "--listen", f"127.0.0.1:{port}", *given]
    return Service("server", "server", port, command, folder, {"OMP_NUM_THREADS": "1"})


def body(**asked: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0, **asked}


async def test_one_process_gives_the_tokens_of_llm_and_all_metrics(model: Path, tmp_path: Path) -> None:
    keys, (key, hidden) = tmp_path / "keys", make_key("alice")
    write_keys(keys, [hidden])
    flags = ["--served-model-name", "tiny", "--api-keys", str(keys), "--vllm-metrics"]
    served = server(model, tmp_path, *flags)
    asked = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 0.8, "seed": 4, "speculation": "off"}]
    params = [
        SamplingParams(max_tokens=40, temperature=one.get("temperature", 0.0), seed=one.get("seed"))
        for one in asked
    ]
    with LLM(str(model), dtype="float32") as llm:
        expected = [llm.generate({"prompt_token_ids": PROMPT}, one)[0].outputs[0].text for one in params]
    served.start()
    await served.ready()
    address = f"http://127.0.0.1:{served.port}"
    try:
        async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
            assert (await client.post("/v1/completions", json=body())).status_code == 401
            client.headers["Authorization"] = f"Bearer {key}"
            for at_once in (1, 2):  # also in a batch
                replies = await asyncio.gather(
                    *(client.post("/v1/completions", json=body(**one)) for one in asked * at_once)
                )
                texts = [reply.json()["choices"][0]["text"] for reply in replies]
                assert texts == expected * at_once
            assert (await client.get("/health")).json() == {"status": "ok"}
            metrics = (await client.get("/metrics")).text
    finally:
        await served.stop()
    for name in (
        "generation_tokens_total",
        "verifier_step_seconds_count",
        "http_calls_total",
        "build_info",
    ):
        assert f"\nspecinfer_{name}" in metrics, name
    assert metrics.count("# TYPE specinfer_build_info") == 1
    assert '\nvllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0' in metrics
    accepted = [
        line for line in metrics.splitlines() if line.startswith("specinfer_spec_decode_num_draft_tokens")
    ]
    assert sum(float(line.split()[-1]) for line in accepted) > 0


async def test_a_gguf_file_is_served_as_it_lies(tmp_path: Path) -> None:
    """Under the file's name; the log shows what the start does."""
    unseen = f"{{# {tmp_path} #}}"  # else the cache may have it
    file = write_model_file(tmp_path / "files" / "Tiny.F32.gguf", template=unseen)
    served = server(file, tmp_path, "--draft", "none")
    served.start()
    await served.ready()
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", timeout=60) as client:
            models = (await client.get("/v1/models")).json()
            reply = (await client.post("/v1/completions", json=body(model="Tiny.F32", max_tokens=3))).json()
    finally:
        await served.stop()
    assert [model["id"] for model in models["data"]] == ["Tiny.F32"]
    assert (reply["model"], reply["usage"]["completion_tokens"] > 0) == ("Tiny.F32", True)
    log = served.log.read_text()
    for what in ("reading configuration and tokenizer of", "comparing a few layers", "measuring passes"):
        assert f"INFO    server specinfer.progress: {what}" in log, what


async def test_a_stream_goes_on_after_the_process_was_killed(model: Path, tmp_path: Path) -> None:
    """With `--store`: what the client has is not sent again, and nothing is missing."""
    served = server(model, tmp_path, "--served-model-name", "tiny", "--store", str(tmp_path / "store.jsonl"))
    asked = body(stream=True, resumable=True, max_tokens=300, ignore_eos=True)
    served.start()
    await served.ready()
    address = f"http://127.0.0.1:{served.port}"
    try:
        async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
            whole = (
                await client.post("/v1/completions", json={**asked, "stream": False, "resumable": None})
            ).json()
            text, last = "", ""
            async with client.stream("POST", "/v1/completions", json=asked) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("id: "):
                        last = line.removeprefix("id: ")
                    elif line.startswith("data: {"):
                        text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                        if len(text) > 20:
                            break
                await served.kill()
            served.start()
            await served.ready()
            reply = await client.post("/v1/completions", json=asked, headers={"Last-Event-ID": last})
            for line in reply.text.splitlines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    text += event["choices"][0]["text"] if event["choices"] else ""
            assert reply.text.rstrip().endswith("data: [DONE]")
    finally:
        await served.stop()
    assert text == whole["choices"][0]["text"]


async def test_a_stream_waits_while_the_disk_of_the_store_is_full(model: Path, tmp_path: Path) -> None:
    """Nothing is shown that is not in the file, health says so, and nothing ends with an error."""
    store = tmp_path / "store.jsonl"
    served = server(model, tmp_path, "--served-model-name", "tiny", "--store", str(store))
    asked = body(stream=True, resumable=True, max_tokens=400, ignore_eos=True)
    served.start()
    await served.ready()

    def allow(size: int) -> None:
        resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", timeout=60) as client:

            async def health_is(status: int) -> None:
                while (await client.get("/health")).status_code != status:  # noqa: ASYNC110  # its own state
                    await asyncio.sleep(0.05)

            whole = (
                await client.post("/v1/completions", json={**asked, "stream": False, "resumable": None})
            ).json()

            async def stream() -> list[str]:
                async with client.stream("POST", "/v1/completions", json=asked) as reply:
                    return [line async for line in reply.aiter_lines()]

            # room for the request, and for some of its tokens
            allow(store.stat().st_size + max(map(len, store.read_bytes().split(b"\n"))) + 100)
            streaming = asyncio.create_task(stream())
            await health_is(503)
            refused = await client.post("/v1/completions", json=body())
            assert refused.status_code == 503
            assert not streaming.done()
            allow(resource.RLIM_INFINITY)
            await health_is(200)
            lines = await streaming
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
            text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
            assert lines[-2:] == ["data: [DONE]", ""]
    finally:
        await served.stop()
    assert text == whole["choices"][0]["text"]
    assert all(json.loads(line) for line in store.read_text().splitlines() if line)


async def test_what_is_wrong_is_said_before_the_model_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("all_in_one.__main__.verifier", load)
    (tmp_path / "broken").write_text("my diary\n\n")
    os.mkfifo(tmp_path / "fifo")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags, words in [
            (["--listen", address], f"listen = '{address}'"),
            (["--api-keys", str(tmp_path / "none")], "api_keys"),
            (["--chat-template", str(tmp_path / "none")], "chat_template"),
            (["--store", str(tmp_path / "broken")], "store = .*broken': cannot be used"),
            (["--store", str(tmp_path / "fifo")], "store = .*fifo': cannot be used: it is no file"),
            (["--draft", "sssm"], "draft = 'sssm': no such directory.*nor one of the drafters ssm, eagle"),
            (["--draft", "ngram,beem=3"], "beem = '3'"),
            (["--store", "/proc/none/store"], "store = '/proc/none/store': cannot be used"),
        ]:
            given = ["--model", str(model), "--listen", "127.0.0.1:0", *flags]
            with pytest.raises(SettingError, match=words):
                await serve(ServeSettings.load("serve", given))


class Ending:
    """A gateway that takes some time to drain, and the HTTP service behind it."""

    def __init__(self, takes_s: float) -> None:
        self._takes_s, self.left_s = takes_s, -1.0

    async def drain(self) -> None:
        await asyncio.sleep(self._takes_s)

    async def stop(self, seconds: float) -> None:
        self.left_s = seconds


async def test_the_drain_time_is_that_of_both_doors_together() -> None:
    """A pod is killed after it; each for itself would take it twice."""
    late, early = Ending(0.05), Ending(0.0)
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


def test_settings_that_cannot_be_are_named() -> None:
    for flags, words in [
        (["--gateways", "a:1"], "gateways = 'a:1': this process is the gateway"),
        (["--listen", "8000"], "listen = '8000'"),
    ]:
        with pytest.raises(SettingError, match=words):
            ServeSettings.load("serve", flags)


@pytest.mark.parametrize(
    "flags", [["--kv-tokens", "3"], ["--model", "none.gguf"], ["--dtype", "int3"], ["--weights", "q9"]]
)
def test_bad_flags_are_named_before_torch_is_loaded(flags: list[str]) -> None:
    program = ["import sys; from all_in_one.__main__ import main", "try: main(sys.argv[1:])"]
    code = "\n".join([*program, "finally: print('torch' in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "False\n"
    assert flags[1] in done.stderr
