"""The embedded store on a disk that is sometimes full: the next process reads exactly the acknowledged data."""

import asyncio
import resource
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.callers import ANYBODY
from gateway.store.embedded import EmbeddedStore
from gateway.store.leases import EmbeddedLeases
from gateway.store.protocol import GatewayReport
from specinfer.errors import UnavailableError
from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import FinishReason, LogprobRow
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "append", "append", "append", "end", "discard"]),
        st.integers(0, 3),
        st.integers(1, 400),
        st.none() | st.integers(0, 30_000),
    ),
    min_size=1,
    max_size=14,
)
"""(call, request, number of tokens, bytes of free disk space or None for no limit)"""


@contextmanager
def room_for(path: Path, size: int | None) -> Iterator[None]:
    """Let SQLite's log next to a store's file grow by `size` bytes; None: without limit."""
    if size is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    end = path.with_name(f"{path.name}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (end + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Client:
    """Calls a store, and records the acknowledged data."""

    def __init__(self, path: Path) -> None:
        self.store = EmbeddedStore("me", 60, path=path)
        self.states: dict[str, RequestState] = {}
        self.acknowledged: dict[str, tuple[list[int], FinishReason | None]] = {}

    async def step(self, what: str, number: int, count: int) -> None:
        name = f"r{number}"
        calls: dict[str, Callable[[str, int], Coroutine[Any, Any, None]]] = {
            "create": self.create,
            "append": self.append,
            "end": self.end,
            "discard": self.discard,
        }
        if (what == "create") != (name in self.acknowledged):
            await calls[what](name, count)

    async def create(self, name: str, count: int) -> None:
        prompt = tuple(range(count))
        request = GenerationRequest(name, prompt, 1000, GREEDY, logprobs=True, top_logprobs=2)
        await self.store.create(request, "k", ANYBODY, owned=True)
        self.states[name] = RequestState(request, 0.0, 0, GREEDY, list(prompt))
        self.acknowledged[name] = [], None

    def progress(self, name: str, count: int, final: bool) -> Progress:
        start = self.states[name].new_tokens
        new = list(range(start, start + count))
        rows = [LogprobRow(-0.5, ((token, -0.5), (token + 1, -1.5))) for token in new]
        return Progress(self.states[name], new, rows, start, final)

    async def append(self, name: str, count: int) -> None:
        """Append to this and all other unfinished requests in one write."""
        going = [name for name, (_, end) in self.acknowledged.items() if end is None]
        items = [self.progress(writing, count, final=False) for writing in going]
        await self.store.append(items, [], "m")
        for item in items:
            self.states[item.request_id].tokens.extend(item.tokens)
            self.acknowledged[item.request_id][0].extend(item.tokens)

    async def end(self, name: str, count: int) -> None:
        tokens, end = self.acknowledged[name]
        if end is None:
            self.states[name].finish = FinishReason.LENGTH
            item = self.progress(name, count, final=True)
            await self.store.append([item], [], "m")
            self.acknowledged[name] = [*tokens, *item.tokens], FinishReason.LENGTH

    async def discard(self, name: str, count: int) -> None:
        await self.store.discard(name)
        del self.acknowledged[name]


async def read(path: Path) -> dict[str, tuple[list[int], FinishReason | None]]:
    """Return the content of the store as a new process reads it."""
    content: dict[str, tuple[list[int], FinishReason | None]] = {}
    with closing(EmbeddedStore("next", 60, path=path)) as store:
        for (name,) in store.database.execute("SELECT id FROM request").fetchall():
            record = await store.load(name)
            assert record is not None
            assert [row.top[0] for row in record.logprobs] == [(token, -0.5) for token in record.tokens]
            content[name] = record.tokens, record.ending and record.ending.finish
    return content


@given(STEPS)
def test_the_next_process_reads_what_was_acknowledged(steps: list[tuple[str, int, int, int | None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path, copy = Path(folder) / "store", Path(folder) / "killed"
            client = Client(path)
            with closing(client.store):
                for what, request, count, room in steps:
                    try:
                        with room_for(path, room):
                            await client.step(what, request, count)
                    except UnavailableError:
                        assert room is not None
                    for end in ("", "-wal"):
                        shutil.copy(f"{path}{end}", f"{copy}{end}")
                    assert await read(copy) == client.acknowledged

    asyncio.run(run())


async def test_a_gateway_is_not_ready_while_its_store_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "store"
    client = Client(path)
    with closing(client.store):
        leases = EmbeddedLeases(client.store, 3.0)
        await client.create("a", 5)
        with room_for(path, 0):
            with pytest.raises(UnavailableError, match="cannot be written"):
                await client.create("b", 5)
            assert (await client.store.load("a")) is not None, "it can still be read"
            with pytest.raises(UnavailableError, match="cannot be written"):
                await leases.renew(GatewayReport("me"), [])
        await leases.renew(GatewayReport("me"), [])
        assert await client.store.owned() == {"a": 1}


async def test_a_full_disk_does_not_keep_a_store_from_opening(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "killed"
    client = Client(path)
    with closing(client.store):
        await client.create("a", 5)
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
        with room_for(path, 0):
            assert await read(copy) == {"a": ([], None)}
