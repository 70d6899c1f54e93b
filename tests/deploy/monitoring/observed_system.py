"""Run a small system of real processes, scraped by a real Prometheus with the committed rules.

The model is tiny and random, and the ports differ from the committed configuration; everything else is as deployed.
"""

import asyncio
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from deploy.prometheus.local import command, local_configuration
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.redis_server import redis_command
from specinfer.cli.local.system import SERVICE_ENVIRONMENT
from specinfer.v1 import generation_pb2_grpc
from tests.chaos.model_directory import write_model
from tests.chaos.service import Service
from tests.support.system import request_for

_ENVIRONMENT = {**SERVICE_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
_PROMPT = [2 + n % 7 for n in range(48)]
"""Prompt of several cache blocks, repetitive so that n-grams find matches."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A client of Prometheus' HTTP interface."""

    port: int

    async def ask(self, path: str, **parameters: str) -> Any:
        """Call Prometheus; return the `data` of its answer.

        Raises:
            ValueError: with the reason, if Prometheus refuses the call.
        """
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        return await asyncio.to_thread(_read, url)

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression whose values are numbers."""
        data = await self.ask("query", query=expression)
        return [sample for sample in data["result"] if sample["value"][1] != "NaN"]


@dataclass(frozen=True, slots=True)
class Observed:
    """Handles of a running system."""

    prometheus: Prometheus
    stub: generation_pb2_grpc.GenerationStub
    http: str
    """Address of the HTTP service."""

    async def work(self) -> None:
        """Send a round of requests: greedy and sampled, one that is refused, and one over HTTP."""

        async def read(**fields: Any) -> None:
            async for _ in self.stub.Generate(request_for(_PROMPT, max_new_tokens=48, **fields)):
                pass

        await asyncio.gather(read(), read(), read(temperature=0.8, seed=7))
        with pytest.raises(grpc.aio.AioRpcError, match="top_p"):
            await read(top_p=-1.0)
        await asyncio.to_thread(_complete, f"http://{self.http}")


@asynccontextmanager
async def observed_system(directory: Path) -> AsyncIterator[Observed]:
    """Run the system within the context."""
    ports = dict(zip(_NAMES, free_ports(len(_NAMES)), strict=True))
    scraped = dict(zip(_SCRAPED, free_ports(len(_SCRAPED)), strict=True))
    scraped["http"] = ports["http"]
    configuration = directory / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(local_configuration(_targets(scraped))))
    services = _services(directory, ports, scraped)
    others = [service for service in services if service.kind != "gateway"]
    gateway = [service for service in services if service.kind == "gateway"]
    try:
        for chosen in (others, gateway):  # the gateway wants to find the others
            for service in chosen:
                service.start()
            await asyncio.gather(*(service.ready() for service in chosen))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['gateway']}") as channel:
            stub = generation_pb2_grpc.GenerationStub(channel)
            http = f"127.0.0.1:{ports['http']}"
            yield Observed(Prometheus(ports["prometheus"]), stub, http)
    finally:
        for service in reversed(services):
            await service.stop()


_NAMES = ("redis", "verifier", "speculator-ngram", "speculator-ssm", "gateway", "http", "prometheus")
_SCRAPED = ("verifier", "speculator-ngram", "speculator-ssm", "gateway")


def _targets(scraped: Mapping[str, int]) -> dict[str, list[str]]:
    targets: dict[str, list[str]] = {}
    for name, port in scraped.items():
        targets.setdefault(f"specinfer-{name.split('-')[0]}", []).append(f"127.0.0.1:{port}")
    return targets


def _services(directory: Path, ports: Mapping[str, int], scraped: Mapping[str, int]) -> list[Service]:
    model = str(write_model(directory / "model"))
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    tiny = {"model": model, "threads": "1", "dtype": "float32", "kv-tokens": "4096"}
    flags: dict[str, dict[str, str]] = {
        "verifier": tiny,
        "speculator-ngram": {"drafter": "ngram"},
        "speculator-ssm": {"drafter": "ssm", **tiny},
        "gateway": {
            "model": model,
            "verifiers": at["verifier"],
            "speculators": f"{at['speculator-ngram']},{at['speculator-ssm']}",
            "redis-url": f"redis://{at['redis']}/0",
        },
    }
    programs = {"verifier": "verifier_svc", "speculator": "speculator_svc", "gateway": "gateway"}
    commands = {"redis": redis_command(ports["redis"], directory)}
    for name, settings in flags.items():
        settings = {"listen": at[name], "metrics-port": str(scraped[name]), **settings}
        parts = [part for key, value in settings.items() for part in (f"--{key}", value)]
        commands[name] = [sys.executable, "-m", programs[name.split("-")[0]], *parts]
    place = ["--listen", at["http"], "--gateways", at["gateway"]]
    commands["http"] = [sys.executable, "-m", "http_svc", *place]
    commands["prometheus"] = command(directory / "prometheus.yml", directory / "data", ports["prometheus"])
    return [
        Service(name, name.split("-")[0], ports[name], command, directory, _ENVIRONMENT)
        for name, command in commands.items()
    ]


def _complete(address: str) -> None:
    """Generate over HTTP, with the model's name from the HTTP service."""
    with urllib.request.urlopen(f"{address}/v1/models", timeout=20) as answer:
        (model,) = json.load(answer)["data"]
    body = json.dumps({"model": model["id"], "prompt": _PROMPT, "max_tokens": 4}).encode()
    asked = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(asked, timeout=60).close()


def _read(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:  # Prometheus says in the body what it does not understand
        raise ValueError(f"{urllib.parse.unquote_plus(url)}: {error.read().decode()}") from error
