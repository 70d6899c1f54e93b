"""`python -m benchmarks.suite` reads counters of a system between batch sizes."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, start_http_server

from benchmarks.suite import measure as under_test
from benchmarks.suite.plan import SuitePlan, SuiteSize
from specinfer.cli.local.processes import free_ports
from specinfer.prompts import PromptRow


async def test_memory_and_dropped_tokens_are_told_for_each_batch_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = CollectorRegistry()
    dropped = Counter("specinfer_verifier_window_dropped_tokens", "of a test", registry=registry)
    dropped.inc(1000)  # before anything was measured
    (port,) = free_ports(1)
    server, thread = start_http_server(port, "127.0.0.1", registry)

    async def warm_up(*_: Any) -> None:
        dropped.inc(7)

    async def take_turns(_: Any, __: Any, batch: int, ___: Any) -> dict[str, list[Any]]:
        dropped.inc(5 * batch)
        return {"tree": []}

    monkeypatch.setattr(under_test, "warm_up", warm_up)
    monkeypatch.setattr(under_test, "take_turns", take_turns)
    here, gone = SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=2**22 + 1)
    system: Any = SimpleNamespace(address="127.0.0.1:1", children={"here": here, "gone": gone})
    plan = SuitePlan((PromptRow("a"),), SuiteSize(1, 4, (1, 4)), 0.0).bench(("tree",))
    try:
        batches = await under_test._all_batches(system, port, plan, lambda _: None)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert {batch: held["dropped_tokens"] for batch, (_, held) in batches.items()} == {1: 5, 4: 20}
    for _, held in batches.values():
        assert held["memory_mib"] > 10, "of this process"
        assert abs(held["memory_growth_mib"]) < held["memory_mib"]
