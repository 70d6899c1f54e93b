"""Common clients: each answers, streams, follows schemas and calls functions, or docs/http.md states the exception."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specinfer.verification.jobs import EngineLimits
from tests.clients.environments import environment
from tests.support.network.http_service import HttpService, http_service
from tests.support.system import ascii_tokenizer, running_system
from tests.support.tiny_models import tiny_transformers

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
FEATURES = ("answers", "streams", "schemas", "tools", "items")
CLIENTS: dict[str, tuple[tuple[str, ...], Sequence[str]]] = {
    "openai": (("openai",), FEATURES),
    "litellm": (("litellm",), FEATURES),
    "pydantic_ai": (("pydantic-ai-slim[openai]",), FEATURES),
    "openai_agents": (("openai-agents",), FEATURES),
}
"""Packages of each client, and the features that work with it."""
CONTEXT = 8192


@asynccontextmanager
async def served(redis_url: str) -> AsyncIterator[HttpService]:
    """A system whose tokens are letters, with a context that fits the long prompts of frameworks."""
    model = tiny_transformers("llama", max_position_embeddings=CONTEXT)
    limits = EngineLimits(max_context_len=CONTEXT)
    async with (
        running_system(redis_url, model=model, engine_limits=limits, kv_tokens=8 * CONTEXT, eos=0) as system,
        http_service(system.address) as http,
    ):
        yield http


async def output_of(*command: Any, **variables: str) -> str:
    """Return the standard output of a program; fail with its standard error if it fails."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **variables},
    )
    printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()[-4000:]
    return printed.decode()


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_gets_what_it_asks_for(client: str, redis_url: str) -> None:
    _, works = CLIENTS[client]
    programs = environment("clients", *(task for wanted, _ in CLIENTS.values() for task in wanted))
    async with served(redis_url) as http:
        printed = await output_of(programs / "python", PROGRAMS / f"with_{client}.py", f"{http.url}/v1")
    answer = json.loads(printed.splitlines()[-1])
    assert [feature for feature in FEATURES if answer[feature]] == list(works)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_guidellm_completes_all_its_requests(path: str, redis_url: str, tmp_path: Path) -> None:
    guidellm = environment("guidellm", "guidellm==0.8.0") / "guidellm"
    ascii_tokenizer()._fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    report, prompts = tmp_path / "report.json", tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"{i} owls", "output_tokens": 8}) + "\n" for i in range(40))
    )
    async with served(redis_url) as http:
        await output_of(
            *(guidellm, "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={http.url},model=tiny,request_format={path}"),
            *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=24"),
            *("--tokenizer", f"kind=huggingface_auto,model={tmp_path}"),
            *("--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={report}"),
            HF_HUB_OFFLINE="1",
            HOME=str(tmp_path),
        )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (24, 0)


def test_the_page_says_which_clients_are_tried_and_what_works() -> None:
    text = (ROOT / "docs" / "http.md").read_text().partition("\n## Clients")[2].partition("\n## ")[0]
    assert f"({', '.join(FEATURES)})" in text
    assert {client for client in CLIENTS if f"`{client}`" in text} == CLIENTS.keys()
    assert {works for _, works in CLIENTS.values()} == {FEATURES}, "the page says so of all of them"
