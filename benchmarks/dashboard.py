"""Draw the README's dashboards from a system under changing load.

`python -m benchmarks.dashboard` runs the demo's pair, scraped by Debian's `prometheus`, and takes six minutes.
"""

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import typer
import yaml

from benchmarks.load import Load, generate_all
from benchmarks.publish import RESULTS
from deploy.grafana.picture import TimeRange, draw
from deploy.prometheus.local import command, local_configuration
from specinfer.cli.demo import PAIR
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.cli.local.system import LocalSystem
from specinfer.client import AsyncClient
from specinfer.hub import resolve_model
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2

PICTURE = RESULTS.parents[1] / "docs" / "dashboards.png"
PROMPTS = RESULTS.parents[1] / "tests" / "data" / "prompts.jsonl"
PHASES = ((1, 50.0), (4, 70.0), (16, 70.0), (28, 60.0), (2, 50.0))
"""Load phases: (concurrent clients, seconds)."""
PANELS = (
    *("Tokens read and generated", "Requests running and waiting", "Time to first token"),
    *("Seconds of an iteration by phase", "Time between tokens", "Time of a pass by tokens"),
    *("Acceptance by speculator", "Accepted at each depth", "Nodes by speculator"),
)


def main(target: Path = PICTURE, speed: float = 1.0) -> None:
    """Run all phases and draw; `speed` divides each phase's seconds."""
    gateway, verifier, prometheus = free_ports(3)
    model, draft = PAIR
    options = LocalOptions(
        model=model,
        gateway={"metrics-port": str(gateway)},
        verifier={"metrics-port": str(verifier)},
        speculators={},
        draft=draft,
    )
    ports = {"gateway": gateway, "verifier": verifier}
    with LocalSystem(options, typer.echo) as system, tempfile.TemporaryDirectory() as directory:
        scraper = start_prometheus(Path(directory), ports, prometheus)
        try:
            start = round(time.time())
            asyncio.run(work(system.address, speed))
            draw(PANELS, f"http://127.0.0.1:{prometheus}", TimeRange(start + 4, round(time.time())), target)
        finally:
            scraper.terminate()
            scraper.join(timeout_s=10)
    typer.echo(f"{target}: {target.stat().st_size / 1000:.0f} kB")


def start_prometheus(directory: Path, ports: dict[str, int], port: int) -> Child:
    """Start a Prometheus that scrapes these ports of loopback."""
    configuration = directory / "prometheus.yml"
    targets = {f"specinfer-{job}": [f"127.0.0.1:{ports_of_job}"] for job, ports_of_job in ports.items()}
    configuration.write_text(yaml.safe_dump(local_configuration(targets)))
    arguments = command(configuration, directory / "data", port)
    child = Child("prometheus", arguments, directory / "prometheus.log", {})
    wait_for_port(child, f"127.0.0.1:{port}", timeout_s=30)
    return child


async def work(address: str, speed: float) -> None:
    """Run every phase of `PHASES`."""
    prompts = read_prompts()
    async with AsyncClient(address) as client:
        for clients, seconds in PHASES:
            typer.echo(f"{clients} clients for {seconds / speed:.0f} s")
            await phase(client, prompts, clients, seconds / speed)


async def phase(client: AsyncClient, prompts: Sequence[Sequence[int]], clients: int, seconds: float) -> None:
    """Run clients for some seconds, each with one request at a time.

    Requests that run at the end are finished.
    """
    load = Load(1, generation_pb2.SPECULATION_UNSPECIFIED, new_tokens=64)
    stop = time.monotonic() + seconds
    turns = itertools.cycle(prompts)

    async def one_client() -> None:
        while time.monotonic() < stop:
            await generate_all(client, [next(turns)], load)

    await asyncio.gather(*(one_client() for _ in range(clients)))


def read_prompts() -> list[list[int]]:
    """Return the tests' prompts as token ids."""
    tokenizer = Tokenizer.load(resolve_model(PAIR[0]))
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    return [tokenizer.encode_chat([{"role": "user", "content": line["turns"][0]}]) for line in lines]


if __name__ == "__main__":
    typer.run(main)
