"""What OpenAI's API over HTTP adds to the time of a token, against gRPC.

    python -m benchmarks.http_latency

A server plays the gateway: each reply is one token, sent at a fixed pace, and its text is the time at which
it was sent. Clients of both kinds read such streams, some at once, and compare with their own clock, which is
the same on one machine. gRPC is our Python client; HTTP is the service as its process runs it, read by a
client that does no more than it must. The kinds take turns, so that drift of the machine meets both alike.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import grpc
import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.local import SERVICE_ENVIRONMENT
from specinfer.cli.processes import Child, free_ports, wait_for_port
from specinfer.client import AsyncClient
from specinfer.v1 import generation_pb2, generation_pb2_grpc

TOKENS, PACE_S = 100, 0.02
STREAMS = (1, 16, 64)
_MODEL = "paced"
_START_S = 60.0


class PacedGateway(generation_pb2_grpc.GenerationServicer):
    """Sends a token at a time, with the time."""

    async def Status(self, message: Any, context: Any) -> generation_pb2.StatusReply:
        """The name of a model that there is not."""
        return generation_pb2.StatusReply(model=_MODEL)

    async def Generate(self, message: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateReply]:
        """As many tokens as are asked for."""
        for position in range(message.max_new_tokens):
            await asyncio.sleep(PACE_S)
            text = f"{time.monotonic_ns()} "
            yield generation_pb2.GenerateReply(position=position, token_ids=[7], text=text)
        yield generation_pb2.GenerateReply(
            position=message.max_new_tokens, summary=generation_pb2.Summary(new_tokens=position + 1)
        )


async def serve_paced(port: int) -> None:
    """Serves until the process is ended."""
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(PacedGateway(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


@contextmanager
def processes(gateway: int, http: int) -> Iterator[None]:
    """The gateway that is played and the HTTP service, each a process."""
    commands = {
        gateway: ["benchmarks.http_latency", "--serve", str(gateway)],
        http: ["http_svc", "--listen", f"127.0.0.1:{http}", "--gateways", f"127.0.0.1:{gateway}"],
    }
    environment = {key: text for key, text in SERVICE_ENVIRONMENT.items() if key not in os.environ}
    with TemporaryDirectory(prefix="specinfer-http-") as logs:
        children = {
            port: Child(module, [sys.executable, "-m", module, *flags], Path(logs) / module, environment)
            for port, (module, *flags) in commands.items()
        }
        try:
            for port, child in children.items():
                wait_for_port(child, f"127.0.0.1:{port}", _START_S)
            yield
        finally:
            for child in children.values():
                child.terminate()
            for child in children.values():
                child.join(timeout_s=10.0)


async def over_grpc(client: AsyncClient) -> list[int]:
    """Nanoseconds from the sending of each token of a stream to its reading."""
    async with client.stream("hi", max_new_tokens=TOKENS) as stream:
        return [time.monotonic_ns() - int(piece.text) async for piece in stream]


async def over_http(port: int) -> list[int]:
    """The same over HTTP."""
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": _MODEL, "messages": messages, "max_tokens": TOKENS, "stream": True}
    content = json.dumps(body).encode()
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", "Content-Type: application/json")
    head = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + content)
    found = []
    while not (line := await reader.readline()).startswith(b"data: [DONE]"):
        if line.startswith(b"data: "):
            now = time.monotonic_ns()
            text = json.loads(line[6:])["choices"][0]["delta"].get("content")
            if text:
                found.append(now - int(text))
    writer.close()
    return found


async def measure(gateway: int, http: int, streams: int, rounds: int) -> dict[str, Any]:
    """Both kinds with so many streams at once, in turn."""
    found: dict[str, list[int]] = {"grpc": [], "http": []}
    medians: list[float] = []
    async with AsyncClient(f"127.0.0.1:{gateway}") as client:
        for _ in range(rounds):
            turn = {
                "grpc": await asyncio.gather(*(over_grpc(client) for _ in range(streams))),
                "http": await asyncio.gather(*(over_http(http) for _ in range(streams))),
            }
            flat = {kind: [t for stream in rows for t in stream] for kind, rows in turn.items()}
            assert len(flat["grpc"]) == len(flat["http"]) == streams * TOKENS
            medians.append((median(flat["http"]) - median(flat["grpc"])) / 1e6)
            for kind, times in flat.items():
                found[kind].extend(times)
    return {
        "streams": streams,
        **{f"{kind}_ms": _percentiles(times) for kind, times in found.items()},
        "added_ms": median(medians),
        "added_range_ms": [min(medians), max(medians)],
    }


def _percentiles(nanoseconds: Sequence[int]) -> dict[str, float]:
    cuts = quantiles([time / 1e6 for time in nanoseconds], n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# Time of a token over HTTP and over gRPC",
        "",
        f"{origin(report['about'])}. From the gateway's sending to the client's reading, {TOKENS} tokens a "
        f"stream, one each {PACE_S * 1e3:.0f} ms, {report['rounds']} rounds in which the kinds take turns. "
        "Added: median of the differences of a round's medians, in brackets their range.",
        "",
        *head(["gRPC p50 / p99, ms", "HTTP p50 / p99, ms", "added per token, ms"], "streams at once"),
    ]
    for row in report["rows"]:
        both = [f"{row[kind]['p50']:.2f} / {row[kind]['p99']:.2f}" for kind in ("grpc_ms", "http_ms")]
        low, high = row["added_range_ms"]
        lines.append(line(str(row["streams"]), [*both, f"{row['added_ms']:.2f} ({low:.2f} to {high:.2f})"]))
    return "\n".join(lines) + "\n"


async def run(rounds: int) -> list[dict[str, Any]]:
    """One row for each number of streams."""
    gateway, http = free_ports(2)
    with processes(gateway, http):
        await over_http(http)  # warm-up, not measured
        return [await measure(gateway, http, streams, rounds) for streams in STREAMS]


def main(
    rounds: Annotated[int, typer.Option(help="Turns of both kinds.")] = 5,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "http-latency",
    serve: Annotated[int, typer.Option(help="Play the gateway at this port.", hidden=True)] = 0,
) -> None:
    """Measure what HTTP adds to a token."""
    if serve:
        asyncio.run(serve_paced(serve))
        return
    rows = asyncio.run(run(rounds))
    report = {"about": about_this_run(), "rounds": rounds, "rows": rows}
    publish(out, report, table(report))


if __name__ == "__main__":
    typer.run(main)
