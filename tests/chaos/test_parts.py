"""The parts of the harness: a chaos test that found no faults would always pass."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from specinfer.cli.local.processes import free_ports
from specinfer.errors import UnavailableError
from specinfer.v1 import generation_pb2
from tests.chaos.client import ChangedError, compare, take
from tests.chaos.faults import FaultKind, longest_pauses, plan
from tests.chaos.orders import Outcome, make_orders
from tests.chaos.proxy import Proxy
from tests.chaos.report import Report
from tests.chaos.service import Service
from tests.support.system import until


@asynccontextmanager
async def echo_behind(
    hold_s: float = 0.0, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[Proxy, list[bytes]]]:
    """Run an echo server and a proxy to it; yield the proxy, and the list of received data."""
    received, answering = list[bytes](), set[asyncio.StreamWriter]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(writer)
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(100):
                received.append(piece)
                writer.write(piece)
        writer.close()
        answering.remove(writer)

    server_port, port = free_ports(2)
    server = await asyncio.start_server(answer, "127.0.0.1", server_port)
    proxy = Proxy("echo", port, server_port, clock)
    await proxy.start()
    proxy.hold(hold_s)
    try:
        yield proxy, received
    finally:
        await proxy.stop()
        server.close()
        await until(lambda: not answering)


async def test_a_proxy_passes_everything_on() -> None:
    async with echo_behind() as (proxy, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        for word in (b"one", b"two"):
            writer.write(word)
            assert await reader.readexactly(3) == word
        writer.close()


async def test_a_cut_ends_a_connection_and_the_next_one_works() -> None:
    async with echo_behind() as (proxy, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"one")
        await reader.readexactly(3)
        assert proxy.cut() == 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        writer.close()


async def test_what_is_held_back_arrives_although_its_sender_gave_up() -> None:
    now = [0.0]
    async with echo_behind(hold_s=0.1, clock=lambda: now[0]) as (proxy, received):
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"late")
        writer.close()
        await writer.wait_closed()
        assert received == []
        now[0] = 1.0
        await until(lambda: received == [b"late"])


async def test_a_service_is_killed_and_started_again(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-S", "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    service = Service("web", "web", port, command, tmp_path, {})
    service.start()
    await service.ready()
    await service.kill()
    service.check()  # a process that was killed did not end by itself
    service.start()
    await service.ready()
    await service.stop()
    with pytest.raises(UnavailableError, match="web ended"):
        service.check()


def test_a_seed_decides_all_faults() -> None:
    processes, links = ["redis", "gateway-1"], ["redis-1", "verifier-1"]
    first, again, other = (list(plan(seed, 200, processes, links, 1.0, 0.5)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {fault.kind for fault in first} == set(FaultKind)
    assert {fault.target for fault in first if fault.kind in (FaultKind.KILL, FaultKind.PAUSE)} == set(
        processes
    )
    assert {fault.target for fault in first if fault.kind in (FaultKind.DELAY, FaultKind.CUT)} == set(links)
    assert {fault.target for fault in first if fault.kind is FaultKind.FAILOVER} == {"redis"}
    pauses = [fault.seconds for fault in first if fault.kind is FaultKind.PAUSE]
    assert min(pauses) < 1.0 < max(pauses), "shorter and longer than the lease"


def test_the_longest_pause_is_one_that_the_fault_can_have_caused() -> None:
    gaps = [(0.0, 1.0), (9.8, 10.5), (10.3, 13.0), (11.0, 20.0)]
    assert longest_pauses([(10.0, "kill"), (50.0, "cut")], gaps) == {
        "kill": [pytest.approx(2.7)],
        "cut": [0.0],
    }


def reply(position: int, *tokens: int, **fields: object) -> generation_pb2.GenerateReply:
    return generation_pb2.GenerateReply(position=position, token_ids=tokens, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("second", "kind", "tokens"),
    [
        (reply(3, 7), "lost", 1),
        (reply(1, 6, 7), "repeated", 1),
        (reply(2, summary=generation_pb2.Summary(finish_reason=1, new_tokens=4)), "lost", 2),
    ],  # type: ignore[arg-type]
    ids=["hole", "twice", "short"],
)
def test_a_client_notices_what_is_missing_and_what_comes_twice(
    second: generation_pb2.GenerateReply, kind: str, tokens: int
) -> None:
    outcome = Outcome()
    take(reply(0, 5, 6), outcome)
    with pytest.raises(ChangedError) as caught:
        take(second, outcome)
    assert (caught.value.kind, caught.value.tokens) == (kind, tokens)


@pytest.mark.parametrize(
    ("outcome", "tokens"),
    [
        (Outcome([1, 2, 4], [], "abd", 1), 1),
        (Outcome([1, 2], [], "ab", 1), 1),
        (Outcome([1, 2, 3], [], "ab", 1), 1),
        (Outcome([1, 2, 3], [], "abc", 2), 1),
        (Outcome([3, 2, 1, 0], [], "cba", 1), 3),
    ],
)
def test_a_difference_from_the_undisturbed_run_is_counted(outcome: Outcome, tokens: int) -> None:
    compare("same", Outcome([1, 2, 3], [], "abc", 1), Outcome([1, 2, 3], [], "abc", 1))
    with pytest.raises(ChangedError) as caught:
        compare("other", outcome, Outcome([1, 2, 3], [], "abc", 1))
    assert (caught.value.kind, caught.value.tokens) == ("changed", tokens)


def test_the_last_line_and_the_record_tell_the_same() -> None:
    report = Report(requests=5)
    report.fault(1.0, "kill gateway")
    report.fault(2.0, "cut redis")
    assert report.good
    assert report.last_line() == "faults injected 2, requests 5, tokens lost 0, repeated 0, changed 0"
    report.problem("lost", 3, "r: position 7 after 4 tokens")
    assert not report.good
    assert "tokens lost 3, repeated 0" in report.last_line()
    record = report.to_json({"kill gateway": [1.0, 2.0]}, {"seed": 1})
    assert (record["tokens_lost"], record["faults_by_kind"]) == (3, {"cut redis": 1, "kill gateway": 1})
    assert record["longest_pause_seconds"]["kill gateway"]["p50"] == 1.5


def test_requests_differ_and_hang_on_the_seed() -> None:
    orders = make_orders(3, 16, 100)
    assert orders == make_orders(3, 16, 100)
    assert len({order.SerializeToString() for order in orders}) == 16
    assert {bool(order.stop_strings) for order in orders} == {True, False}
    assert {order.sampling.temperature > 0 for order in orders} == {True, False}
    assert {order.logprobs for order in orders} == {True, False}
