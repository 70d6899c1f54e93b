"""Run `specinfer up` and `specinfer serve` on the device, with clients over gRPC and HTTP.

In float32 every answer must have the tokens of plain decoding. In 16 bits, rounding depends on a pass's size and may
change close choices, so equal answers are only counted. `up` drafts in every step (--no-adaptive), `serve` where the
planner expects a gain.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.models import Pair, written_pair
from benchmarks.gpu.run import GpuContext, ServedShape, WrongTextError
from benchmarks.step.ledger import PHASES, gateway_counters, used
from benchmarks.tables import head, line
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import Child, free_ports
from specinfer.cli.local.system import SERVICE_ENVIRONMENT, LocalSystem
from specinfer.client import Answer, AsyncClient
from specinfer.errors import UnavailableError
from specinfer.openai_api.server import ApiServer
from specinfer.request.answer import Piece, add_up
from specinfer.system.running import running_servers

_EXACT = "float32"
_PATIENCE_S = 120
"""Seconds that requests wait for the killed verifier."""
_LOG_LINES = 30
_GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
_MODES = {"plain": "off", "sequence": "sequence", "trees": "always"}
"""Values of `speculation` by mode; `always` drafts a tree in every step."""


class Served(NamedTuple):
    """A running system."""

    address: str
    """gRPC address."""
    url: str
    ports: Mapping[str, int]
    """Ports of the metrics of verifier and gateway."""


def up(context: GpuContext) -> Iterator[str]:
    """Yield checks and speeds of services with a draft in the verifier and in a service."""
    served = context.scale.served[0]
    with (
        written_pair(served, context) as pair,
        _up(pair, served, context) as (system, one),
        asyncio.Runner() as loop,
    ):
        yield from _texts(one, served, loop)
        yield from _resumed(system, one, served, loop)
        yield from _speeds(one, served, loop)


def serve(context: GpuContext) -> Iterator[str]:
    """Yield texts and speeds of the server in one process, with a resident draft."""
    served = context.scale.served[1]
    with (
        written_pair(served, context) as pair,
        _serve(pair, served, context) as one,
        asyncio.Runner() as loop,
    ):
        yield from _texts(one, served, loop)
        yield from _speeds(one, served, loop)


@contextmanager
def _up(pair: Pair, served: ServedShape, context: GpuContext) -> Iterator[tuple[LocalSystem, Served]]:
    verifier, gateway, http = free_ports(3)
    options = LocalOptions(
        model=str(pair.target),
        dtype=served.dtype,
        device=context.device,
        draft=str(pair.draft),
        speculators={"remote-ssm": {"drafter": "ssm", "model": str(pair.draft)}},
        verifier={"executor": context.executor, "metrics-port": str(verifier)},
        gateway={
            "adaptive": "false",
            "verifier-patience-seconds": str(_PATIENCE_S),
            "max-batch": str(max(served.streams)),
            "metrics-port": str(gateway),
        },
        http=f"127.0.0.1:{http}",
    )
    ports, system = {"verifier": verifier, "gateway": gateway}, LocalSystem(options)
    with _logs_of_failures(system.logs), system, _logs_of_failures(system.logs):
        yield system, Served(system.address, f"http://127.0.0.1:{http}", ports)


@contextmanager
def _serve(pair: Pair, served: ServedShape, context: GpuContext) -> Iterator[Served]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "specinfer.cli", "serve", str(pair.target), "--draft", str(pair.draft)]
    command += ["--listen", f"127.0.0.1:{port}", "--dtype", served.dtype, "--device", context.device]
    command += ["--max-batch", str(max(served.streams))]
    with tempfile.TemporaryDirectory(dir=context.folder) as folder, _logs_of_failures(Path(folder)):
        environment = {"SPECINFER_VERIFIER_EXECUTOR": context.executor, **SERVICE_ENVIRONMENT}
        child = Child("serve", command, Path(folder) / "serve.log", environment)
        ports = {"verifier": port, "gateway": port}
        try:
            yield Served(_announced(child, context), f"http://127.0.0.1:{port}", ports)
        finally:
            child.terminate()
            child.join(timeout_s=10)


@contextmanager
def _logs_of_failures(folder: Path) -> Iterator[None]:
    """Print the ends of a system's logs if the context fails."""
    try:
        yield
    except Exception:
        for path in sorted(folder.glob("*.log")):
            last = path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            print(f"--- {path.name}", *last, sep="\n", file=sys.stderr)
        raise


def _announced(child: Child, context: GpuContext) -> str:
    """Wait until a server is ready; return its gRPC address."""
    while context.left > 0:
        child.check()
        if address := next((one.address for one in running_servers() if one.pid == child.pid), ""):
            return address
        time.sleep(0.1)
    raise UnavailableError(f"serve is not ready: {child.last_line()}")


def _prompts(served: ServedShape, count: int) -> list[list[int]]:
    rng = np.random.default_rng(count)
    return [rng.integers(1, served.shape.vocabulary, served.prompt).tolist() for _ in range(count)]


async def _described(one: Served) -> str:
    async with AsyncClient(one.address) as client:
        status = await client.status()
    names = ", ".join(f"{speculator.name} ({speculator.service})" for speculator in status.speculators)
    return f"Executor {status.executor} on {status.device}, {status.dtype}; speculators: {names}."


async def _answers(
    one: Served, prompts: Sequence[Sequence[int]], new_tokens: int, mode: str
) -> tuple[list[Answer], dict[str, float]]:
    """Return answers over gRPC, and the increase of the counters."""
    async with AsyncClient(one.address) as client:
        before = await gateway_counters(client, one.ports)
        common = {"max_new_tokens": new_tokens, "speculation": mode, **_GREEDY}
        answers = await asyncio.gather(*(client.generate(prompt, **common) for prompt in prompts))
        return answers, used(before, await gateway_counters(client, one.ports))


def _over_http(one: Served, prompts: Sequence[Sequence[int]], new_tokens: int, mode: str) -> list[str]:
    api = ApiServer.at(one.url)
    fields = {"model": api.model()[0], "max_tokens": new_tokens, "speculation": mode, **_GREEDY}
    with ThreadPoolExecutor(len(prompts)) as pool:
        replies = pool.map(lambda prompt: api.get_json("completions", {**fields, "prompt": prompt}), prompts)
        return [str(reply["choices"][0]["text"]) for reply in replies]


def _texts(one: Served, served: ServedShape, loop: asyncio.Runner) -> Iterator[str]:
    """Yield the number of answers that equal plain decoding, by mode."""
    prompts, plain, different = _prompts(served, served.checked), list[Answer](), 0
    yield from (loop.run(_described(one)), "")
    yield from head(["equal over gRPC", "equal over HTTP", "tokens a step", "accepted by speculator"], "mode")
    for name, mode in _MODES.items():
        answers, _ = loop.run(_answers(one, prompts, served.new_tokens, mode))
        plain = plain or answers
        texts = _over_http(one, prompts, served.new_tokens, mode)
        same = sum(a.token_ids == b.token_ids for a, b in zip(answers, plain, strict=True))
        same_texts = sum(text == answer.text for text, answer in zip(texts, plain, strict=True))
        stats = add_up([answer.stats for answer in answers])
        shares = ", ".join(f"{row.name} {row.accepted} of {row.drafted}" for row in stats.speculators)
        cells = [f"{equal} of {len(prompts)}" for equal in (same, same_texts)]
        yield line(name, [*cells, f"{stats.acceptance_length:.2f}", shares])
        different += 2 * len(prompts) - same - same_texts
    yield ""
    if different and served.dtype == _EXACT:
        raise WrongTextError(f"{different} answers differ from plain decoding")


def _resumed(system: LocalSystem, one: Served, served: ServedShape, loop: asyncio.Runner) -> Iterator[str]:
    """Drop the stream of an answer, then also kill the verifier; attach to the answer again."""
    (prompt,) = _prompts(served, 1)
    ((plain,), _) = loop.run(_answers(one, [prompt], served.new_tokens, "off"))

    def restart() -> None:
        system.children["verifier"].kill()
        system._launch("verifier")

    for name, fault in (("stream dropped", bool), ("verifier killed", restart)):
        started = time.monotonic()
        tokens, early = loop.run(_interrupted(one, prompt, served.new_tokens, fault))
        if tokens != list(plain.token_ids):
            raise WrongTextError(f"{name}: the resumed answer differs from plain decoding")
        seconds = time.monotonic() - started
        yield f"{name} after {early} of {len(tokens)} tokens: resumed, equal, {seconds:.1f} s."
    system.wait_for("verifier", system.verifier)  # the answer may have been complete before the kill
    yield ""


async def _interrupted(
    one: Served, prompt: Sequence[int], new_tokens: int, fault: Callable[[], object]
) -> tuple[list[int], int]:
    """Return an answer's tokens, and how many of them came before the call of `fault`."""
    async with AsyncClient(one.address) as client:
        stream = client.stream(prompt, max_new_tokens=new_tokens, speculation="always", **_GREEDY)
        tokens = list[int]()
        async for item in stream:
            if tokens := list(item.token_ids) if isinstance(item, Piece) else []:
                break
        fault()
        rest = await client.attach(stream.request_id, len(tokens)).read()
    return [*tokens, *rest.token_ids], len(tokens)


def _speeds(one: Served, served: ServedShape, loop: asyncio.Runner) -> Iterator[str]:
    """Yield tokens per second and costs of a step; prompts were read before."""
    columns = ["tokens/s", "over plain", "HTTP, tokens/s", "tokens a step", "ms a step", *PHASES]
    yield from head([*columns, "verifier's messages a token", "drafts a token", "equal"], "streams, mode")
    for streams in served.streams:
        prompts, rates, plain = _prompts(served, streams), dict[str, float](), list[Answer]()
        loop.run(_answers(one, prompts, 1, "off"))
        for name, mode in (("plain", "off"), ("trees", "tree")):
            answers, counted = loop.run(_answers(one, prompts, served.new_tokens, mode))
            started = time.perf_counter()
            _over_http(one, prompts, served.new_tokens, mode)
            over_http = streams * served.new_tokens / (time.perf_counter() - started)
            plain, steps, tokens = plain or answers, counted["steps"], counted["tokens"]
            rates[name] = tokens / counted["wall"]
            cells = [f"{rates[name]:.0f}", f"{rates[name] / rates['plain']:.2f}x", f"{over_http:.0f}"]
            cells += [f"{tokens / steps / streams:.2f}", f"{1000 * counted['wall'] / steps:.2f}"]
            cells += [f"{1000 * counted[f'phase.{phase}'] / steps:.2f}" for phase in PHASES]
            messages = [counted.get(f"messages.{peer}", 0.0) for peer in ("verifier", "speculators")]
            cells += [f"{count / tokens:.3f}" for count in messages]
            same = sum(a.token_ids == b.token_ids for a, b in zip(answers, plain, strict=True))
            yield line(f"{streams}, {name}", [*cells, f"{same} of {streams}"])
