"""A verifier of four ranks (TP 2, PP 2) in a whole system: a rank dies, another hangs."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import torch

from specinfer.cli.connection import Connection
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.system import LocalSystem
from specinfer.cli.status import get_status
from specinfer.client.request import make_request
from specinfer.model.parallel.layout import Layout, Place
from specinfer.model.weights.config_files import load_config
from tests.chaos.model_directory import write_model
from tests.support.models.rank_memory import rank_memory
from tests.support.network.scrape import Scrape
from tests.support.system import ascii_tokenizer, text_of
from tests.support.tiny_models import tiny_transformers

pytestmark = pytest.mark.slow
SHAPE = {"vocab_size": 100, "seed": 3}
PROMPT = "abcabcab"
COUNT, LONG = 24, 400
"""Numbers of tokens of a short request, and of one during which a rank dies."""
KV_TOKENS = 1024
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    model = write_model(tmp_path_factory.mktemp("parallel") / "model", **SHAPE)
    return {
        "model": str(model),
        "dtype": "float32",
        "tensor-parallel": "2",
        "pipeline-parallel": "2",
        "rank-timeout-seconds": "15",
        "kv-tokens": str(KV_TOKENS),
        "metrics-port": str(free_ports(1)[0]),
    }


@pytest.fixture(scope="module")
def system(flags: dict[str, str]) -> Iterator[LocalSystem]:
    ngram = {"ngram": {"drafter": "ngram"}}
    gateway = {"verifier-patience-seconds": "300"}
    options = LocalOptions(flags["model"], "float32", verifier=flags, gateway=gateway, speculators=ngram)
    with LocalSystem(options) as running:
        yield running


@pytest.mark.skipif((os.cpu_count() or 1) < 4, reason="four ranks take two minutes on fewer than four cores")
def test_four_ranks_serve_and_end_together(system: LocalSystem, flags: dict[str, str]) -> None:
    assert answer(system, COUNT) == expected(COUNT), "by transformers, on one process"
    check_reports(system, flags)
    with ThreadPoolExecutor() as threads:
        going = threads.submit(answer, system, LONG)
        until(lambda: get_status(Connection(system.address)).verifiers[0].running == 1)
        pids = ranks(system.children["verifier"].pid)
        os.kill(pids[2], signal.SIGKILL)
        log = wait_for_the_end(system, pids)
        assert re.findall(r"CRITICAL .*(rank \d) .*by (\w+);", log)[-1] == ("rank 2", "SIGKILL"), log
        until(lambda: not get_status(Connection(system.address)).verifiers[0].ready)
        system._spawn("verifier", "verifier_svc", {"listen": system.verifier, **flags})
        assert going.result(PATIENCE_S) == expected(LONG), "it continued with the next verifier"
    pids = ranks(system.children["verifier"].pid)
    os.kill(pids[3], signal.SIGSTOP)
    log = wait_for_the_end(system, pids)
    assert re.search(r"CRITICAL .*rank 0: a command \(beat\) failed, so all ranks end: ", log), log
    assert re.findall(r"CRITICAL .*(rank \d) .*by (\w+);", log) == [("rank 3", "SIGKILL")], log


def answer(system: LocalSystem, count: int) -> str:
    request = make_request(PROMPT, chat=False, max_new_tokens=count, ignore_eos=True)

    async def ask() -> str:
        async with Connection(system.address).client() as client:
            return (await client.generate(request, lambda _: None)).text

    return asyncio.run(ask())


@cache
def expected(count: int) -> str:
    shape = {"max_position_embeddings": 512, "head_dim": 16, "vocab_size": SHAPE["vocab_size"]}
    model = tiny_transformers("llama", SHAPE["seed"], **shape)
    tokens = torch.tensor([ascii_tokenizer().encode(PROMPT)])
    out = model.generate(tokens, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    return text_of(out[0, tokens.shape[1] :].tolist())


def check_reports(system: LocalSystem, flags: dict[str, str]) -> None:
    """Check that each rank's memory has the computed size, and that idle time is counted."""
    config, layout = load_config(Path(flags["model"])), Layout(2, 2)
    scrape = Scrape.at(f"127.0.0.1:{flags['metrics-port']}")
    for rank in range(layout.ranks):
        planned = rank_memory(config, Place(layout, rank), 4)
        parts = {"weights": planned.weights, "cache": KV_TOKENS * planned.kv_per_token}
        assert parts == {
            part: scrape.value("verifier_memory_bytes", rank=str(rank), part=part) for part in parts
        }
    assert set(scrape.by("verifier_stage_seconds_total", "state")) == {"busy", "idle"}


def ranks(launcher: int) -> dict[int, int]:
    """Return the process ids of a launcher's ranks."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    reported = {}
    for pid in map(int, children):
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        reported |= {int(text.removeprefix("RANK=")): pid for text in variables if text.startswith("RANK=")}
    assert sorted(reported) == [0, 1, 2, 3]
    return reported


def wait_for_the_end(system: LocalSystem, pids: dict[int, int]) -> str:
    """Wait until a verifier has failed, check that all its processes ended; return its log."""
    child = system.children.pop("verifier")
    until(lambda: child._process.poll() is not None)
    assert child._process.returncode == 1
    assert not [pid for pid in pids.values() if Path(f"/proc/{pid}").exists()]
    return child._log.read_text()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
