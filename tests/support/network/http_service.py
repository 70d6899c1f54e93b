"""Run the HTTP service on loopback, with clients."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from http_svc.app import HttpServer, build_app
from http_svc.settings import HttpSettings
from specinfer.v1 import generation_pb2
from tests.support.network.fake_gateway import FakeGateway, Turn, fake_gateways

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = generation_pb2.StatusReply(model="tiny", max_context_len=512)
"""Status of the fake gateway."""
ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
SHAPE = {"message", "type", "param", "code"}
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class HttpService:
    """A running HTTP service, with a client."""

    url: str
    registry: CollectorRegistry
    plain: httpx2.AsyncClient
    """Plain HTTP client with the service's address."""
    server: HttpServer

    def openai(self, api_key: str = "none", **options: Any) -> AsyncOpenAI:
        """Return OpenAI's client, by default without retries."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, **{"max_retries": 0, **options})

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if nothing was counted."""
        return self.registry.get_sample_value(f"specinfer_http_{name}", labels) or 0.0


@asynccontextmanager
async def http_service(
    gateways: str, verify: ssl.SSLContext | bool = True, **settings: Any
) -> AsyncIterator[HttpService]:
    """Serve at a free port within the context; `verify`: TLS of the plain client."""
    given = {"listen": "127.0.0.1:0", "gateways": gateways, "drain_seconds": 1.0, **settings}
    registry, chosen, ending = CollectorRegistry(), HttpSettings(**given), asyncio.Event()
    server = HttpServer(chosen, build_app(chosen, chosen.access, registry, ending), ending)
    scheme = "https" if chosen.tls.wanted else "http"
    url = f"{scheme}://127.0.0.1:{await server.start()}"
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=60.0, verify=verify) as plain:
            yield HttpService(url, registry, plain, server)
    finally:
        await server.stop()


@asynccontextmanager
async def served(*script: Turn, **settings: Any) -> AsyncIterator[tuple[FakeGateway, HttpService]]:
    async with fake_gateways(script) as (gateway,):
        gateway.states.append(MODEL)
        options = {"patience_seconds": 0.0, **settings}
        async with http_service(gateway.address, **options) as http:
            yield gateway, http


def error_of(reply: Any) -> dict[str, Any]:
    """Return the error in an answer, after a check of its format."""
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == SHAPE
    return error
