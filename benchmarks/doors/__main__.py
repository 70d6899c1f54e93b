"""Time that an honest caller waits for its answer while others attack: quiet, and beside every attack.

    python -m benchmarks doors --seconds 12

A whole system with keys, the default model and an HTTP service. Attackers are a process of their own, of the lowest
priority: it stands for another machine. Honest callers ask over gRPC and over HTTP,
by turns one plain request and one with a form. Writes `benchmarks/results/doors.json` and `.md`.
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import httpx2
import numpy as np
import typer

from benchmarks.doors.attacks import ATTACKS, Doors, attack
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.cli.show import console
from specinfer.client import AsyncClient, Patience
from specinfer.service.api_keys import make_key, write_keys
from specinfer.v1 import common_pb2, generation_pb2

QUIET = "quiet"
_TOKENS = 24
_WARM_S = 8.0
"""In its first seconds the planner tries what it knows nothing of."""
_PAUSE_S = 0.05


def main(
    seconds: Annotated[float, typer.Option(help="Time beside each attack.")] = 12.0,
    only: Annotated[str, typer.Option(help="Attacks whose names have this; empty for all.")] = "",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "doors",
) -> None:
    """Measure honest callers beside attackers."""
    (good, mine), (evil, theirs) = make_key("good"), make_key("evil", max_concurrent=8)
    (http_port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.jsonl"
        write_keys(keys, [mine, theirs])
        options = LocalOptions(
            gateway={"api-keys": str(keys), "linger-seconds": "0"}, http=f"127.0.0.1:{http_port}"
        )
        with console.status("starting") as spinner, LocalSystem(options, spinner.update) as system:
            target = Doors(system.address, f"127.0.0.1:{http_port}", evil)
            asyncio.run(_ask(target, good, _WARM_S))
            rows = {QUIET: asyncio.run(_ask(target, good, 2 * seconds))}
            for name in [name for name in ATTACKS if only in name]:
                spinner.update(name)
                rows[name] = _beside(name, target, good, seconds)
            rows["quiet again"] = asyncio.run(_ask(target, good, seconds))
    report = {"about": about_this_run(), "seconds": seconds, "tokens": _TOKENS, "rows": rows}
    publish(out, report, markdown(report))


def _beside(name: str, target: Doors, key: str, seconds: float) -> dict[str, Any]:
    process = multiprocessing.get_context("spawn").Process(target=attack, args=(name, target), daemon=True)
    process.start()
    time.sleep(3.0)
    try:
        return asyncio.run(_ask(target, key, seconds))
    finally:
        process.kill()
        process.join()
        time.sleep(2.0)


async def _ask(target: Doors, key: str, seconds: float) -> dict[str, Any]:
    """Ask over both doors for so long; return the times of answers."""
    until = time.monotonic() + seconds
    found: dict[str, list[float]] = {"grpc": [], "form": [], "http": []}
    failed: list[str] = []
    async with (
        AsyncClient(target.gateway, api_key=key, patience=Patience(0.0)) as client,
        httpx2.AsyncClient(base_url=f"http://{target.http}", timeout=60.0) as web,
    ):

        async def over_grpc(form: bool) -> None:
            constraint = common_pb2.Constraint(regex="[a-z ]{100,400}") if form else None
            request = generation_pb2.GenerateRequest(
                text="The red lever opens",
                max_new_tokens=_TOKENS,
                ignore_eos=True,
                sampling=common_pb2.SamplingParams(temperature=0),
                constraint=constraint,
            )
            await client.generate(request)

        async def over_http() -> None:
            body: dict[str, Any] = {
                "model": "smollm2-135m",
                "prompt": "The red lever opens",
                "max_tokens": _TOKENS,
            }
            body["temperature"] = 0
            reply = await web.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
            assert reply.status_code == 200, reply.text

        kinds = {"grpc": lambda: over_grpc(False), "form": lambda: over_grpc(True), "http": over_http}
        while time.monotonic() < until:
            for kind, ask in kinds.items():
                started = time.monotonic()
                try:
                    await ask()
                except Exception as error:  # noqa: BLE001  # it is what is counted
                    failed.append(f"{kind}: {type(error).__name__} {error}"[:200])
                found[kind].append(time.monotonic() - started)
                await asyncio.sleep(_PAUSE_S)
    return {"seconds": found, "failed": failed}


def _cells(row: dict[str, Any], quiet: dict[str, Any]) -> list[str]:
    cells = [str(sum(map(len, row["seconds"].values()))), str(len(row["failed"]))]
    for kind, times in row["seconds"].items():
        middle, high = 1000 * statistics.median(times), 1000 * float(np.quantile(times, 0.99))
        before = 1000 * float(np.quantile(quiet["seconds"][kind], 0.99))
        cells += [f"{middle:.0f}", f"{high:.0f} ({high / before:.1f})"]
    return cells


def markdown(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    columns = ["answers", "failed"]
    for kind in ("gRPC", "gRPC, a form", "HTTP"):
        columns += [f"{kind}: p50, ms", "p99, ms (times quiet)"]
    rows = report["rows"]
    return "\n".join(
        [
            "# Honest callers beside attackers",
            "",
            f"{origin(report['about'])}; answers of {report['tokens']} tokens, one after another, for "
            f"{report['seconds']:g} s beside each attack; the attacker is a process of the lowest priority "
            f"on the same machine.{report.get('note', '')}",
            "",
            *head(columns, "beside"),
            *(line(name, _cells(row, rows[QUIET])) for name, row in rows.items()),
            "",
        ]
    )


if __name__ == "__main__":
    typer.run(main)
