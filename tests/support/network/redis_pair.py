"""Two real Redis servers behind one address, and a failover from the first to the second."""

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.cli.local.redis_server import redis_command
from tests.chaos.failover import RedisRoles
from tests.chaos.proxy import Proxy


class RedisPair:
    """The first is the primary until `fail_over`."""

    def __init__(self, ports: tuple[int, int], proxy: Proxy) -> None:
        self.ports, self._proxy = ports, proxy

    @property
    def url(self) -> str:
        """URL by which clients reach the primary."""
        return f"redis://{self._proxy.address}/0"

    def server(self, number: int) -> Redis:
        """Return a client of one server, without the proxy."""
        return Redis(host="127.0.0.1", port=self.ports[number], decode_responses=True)

    async def fail_over(self) -> None:
        """Promote the second server. The first becomes its replica and keeps its connections; new connections
        reach the second."""
        await RedisRoles(*self.ports).change()
        self._proxy.turn_to(self.ports[1])


@contextlib.contextmanager
def _servers(directory: Path) -> Iterator[tuple[int, int]]:
    first, second = free_ports(2)
    children = []
    for port in (first, second):
        place = directory / str(port)
        place.mkdir()
        children.append(Child(f"redis-{port}", redis_command(port, place), place / "redis.log", {}))
    try:
        for child, port in zip(children, (first, second), strict=True):
            wait_for_port(child, f"127.0.0.1:{port}", timeout_s=60)
        yield first, second
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.join(timeout_s=5)


@pytest.fixture(name="redis_pair")
async def redis_pair_fixture(tmp_path: Path) -> AsyncIterator[RedisPair]:
    """Run both servers, empty."""
    with _servers(tmp_path) as ports:
        proxy = Proxy("redis", free_ports(1)[0], ports[0], time.monotonic)
        await proxy.start()
        try:
            yield RedisPair(ports, proxy)
        finally:
            await proxy.stop()
