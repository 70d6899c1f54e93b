"""The embedded store on a disk that is sometimes full: the next process reads exactly the acknowledged data."""

import resource
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest

from gateway.api.callers import ANYBODY
from gateway.store.embedded import EmbeddedStore
from gateway.store.protocol import GatewayReport
from specinfer.errors import UnavailableError
from specinfer.request.sampling import GREEDY
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState


@contextmanager
def room_for(path: Path, size: int | None) -> Iterator[None]:
    """Let SQLite's log next to a store's file grow by `size` bytes; None: without limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    end = path.with_name(f"{path.name}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else end + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@asynccontextmanager
async def opened(
    path: Path | None, gateway_id: str = "me", clock: Callable[[], float] = time.time
) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(gateway_id, 60, path=path, clock=clock)
    try:
        yield store
    finally:
        await store.close()


def killed(path: Path) -> Path:
    """Return a copy of a store's files, as after the end of its process."""
    copy = path.with_name("killed")
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{copy}{end}")
    return copy


async def read(path: Path) -> dict[str, list[int]]:
    """Return the content of the store as a new process reads it."""
    async with opened(path, "next") as store:
        return {record.request.request_id: record.tokens for record in await store.adopt(100, ["m"])}


def request_of(name: str, prompt: int) -> GenerationRequest:
    return GenerationRequest(name, tuple(range(prompt)), 1000, GREEDY)


@pytest.mark.parametrize("seed", range(12))
async def test_the_next_process_reads_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    draw, path = Random(seed), tmp_path / "store"
    states, acknowledged = dict[str, RequestState](), dict[str, list[int]]()
    async with opened(path) as store:
        for number in range(14):
            name, count = f"r{number}", draw.randrange(1, 2000)
            room = draw.choice([None, draw.randrange(20_000)])
            try:
                with room_for(path, room):
                    if draw.random() < 0.4:
                        request = request_of(name, count)
                        await store.create(request, "k", ANYBODY, owned=True)
                        states[name] = RequestState(request, 0.0, 0, GREEDY, list(request.prompt))
                        acknowledged[name] = []
                    else:
                        new = list(range(count))
                        items = [Progress(states[n], new, [], len(t), False) for n, t in acknowledged.items()]
                        await store.append(items, [], "m")
                        acknowledged = {name: [*tokens, *new] for name, tokens in acknowledged.items()}
            except UnavailableError:
                assert room is not None
            assert await read(killed(path)) == acknowledged


async def test_a_gateway_is_not_ready_while_its_store_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with opened(path) as store:
        await store.create(request_of("a", 5), "k", ANYBODY, owned=True)
        with room_for(path, 0):
            with pytest.raises(UnavailableError, match="cannot be written"):
                await store.create(request_of("b", 5), "k", ANYBODY, owned=True)
            assert await store.load("a") is not None, "it can still be read"
            with pytest.raises(UnavailableError, match="cannot be written"):
                await store.renew(GatewayReport("me"), [])
        await store.renew(GatewayReport("me"), [])
        assert await store.owned() == {"a": 1}


async def test_a_full_disk_does_not_keep_a_store_from_opening(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with opened(path) as store:
        await store.create(request_of("a", 5), "k", ANYBODY, owned=True)
        copy = killed(path)
        with room_for(path, 0):
            async with opened(copy, "next") as again:
                assert await again.load("a") is not None
