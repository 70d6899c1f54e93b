"""Our server and vLLM's on loopback, each plain and with its speculation, all started at once."""

import json
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runtime.peers import PEERS
from specinfer.cli.local.processes import Child, free_ports, wait_for_port

NAME = "model"
LONGEST_START_S = 900
LONGEST_END_S = 15
VLLM = PEERS / ".venvs" / "vllm" / "bin" / "python"
VLLM_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


@dataclass(frozen=True)
class Served:
    """A way of serving the model: its command without the port."""

    name: str
    command: tuple[str, ...]
    flags: str


def ways(model: Path, batch: int) -> list[Served]:
    """Return ours and, if it is installed, vLLM's."""
    ours = (sys.executable, "-m", "all_in_one", "--served-model-name", NAME, "--max-batch", str(batch))
    found = [
        Served(
            "specinfer serve, plain", (*ours, "--speculators", "none"), "weights auto, --speculators none"
        ),
        Served("specinfer serve", ours, "weights auto, default speculators"),
    ]
    if VLLM.exists():
        vllm = (
            str(VLLM),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
            "--served-model-name",
            NAME,
            "--dtype",
            "bfloat16",
        )
        vllm = (*vllm, "--max-model-len", "2048", "--max-num-seqs", str(batch))
        found.append(Served("vLLM, plain", vllm, "bfloat16"))
        n_gram = (*vllm, "--speculative-config", json.dumps(NGRAM))
        found.append(Served("vLLM, n-gram", n_gram, f"bfloat16, {json.dumps(NGRAM)}"))
    return found


@contextmanager
def serving(served: Sequence[Served], logs: Path) -> Iterator[dict[str, str]]:
    """Run these servers; yield their URLs by name, once each has answered a request."""
    places = {one: f"127.0.0.1:{port}" for one, port in zip(served, free_ports(len(served)), strict=True)}
    children: dict[Served, Child] = {}
    try:
        for number, (one, place) in enumerate(places.items()):
            children[one] = Child(
                one.name, [*one.command, *listen(one, place)], logs / f"{number}.log", VLLM_ENVIRONMENT
            )
        for one, child in children.items():
            wait_for_port(child, places[one], LONGEST_START_S)
            warm_up(f"http://{places[one]}")
        yield {one.name: f"http://{place}" for one, place in places.items()}
    finally:
        for child in children.values():
            child.terminate()
        for child in children.values():
            child.join(LONGEST_END_S)


def listen(one: Served, place: str) -> tuple[str, ...]:
    """Return the flags that make a server listen there."""
    host, _, port = place.partition(":")
    return ("--host", host, "--port", port) if one.command[0] == str(VLLM) else ("--listen", place)


def warm_up(url: str) -> None:
    """Have one request answered."""
    messages = [{"role": "user", "content": "Count to ten."}]
    body = {"model": NAME, "messages": messages, "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LONGEST_START_S) as answer:
        answer.read()
