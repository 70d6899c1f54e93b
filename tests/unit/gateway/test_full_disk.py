"""The embedded store on a disk that is sometimes full: the next process reads exactly the acknowledged data."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.callers import ANYBODY
from gateway.store.embedded import EmbeddedStore
from gateway.store.leases import EmbeddedLeases, GatewayReport
from specinfer.errors import UnavailableError
from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import FinishReason, LogprobRow
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState
from tests.support.full_disk import FullDisk, full_disk

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "append", "append", "append", "end", "discard", "shorten"]),
        st.integers(0, 3),
        st.integers(1, 40),
        st.none() | st.integers(0, 3000),
    ),
    min_size=1,
    max_size=14,
)
"""(call, request, number of tokens, bytes of free disk space or None for no limit)"""
PART = st.floats(0, 1, exclude_max=True)
"""A position in a file, as a fraction: lines contain times, so their length varies from run to run."""


class Client:
    """Calls a store, and records the acknowledged data."""

    def __init__(self, path: Path, disk: FullDisk) -> None:
        self.store, self.disk = EmbeddedStore("me", 60, path=path), disk
        self.states: dict[str, RequestState] = {}
        self.acknowledged: dict[str, tuple[list[int], FinishReason | None]] = {}
        self.fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}

    async def step(self, what: str, number: int, count: int) -> None:
        name = f"r{number}"
        calls: dict[str, Callable[[str, int], Coroutine[Any, Any, None]]] = {
            "create": self.create,
            "append": self.append,
            "end": self.end,
            "discard": self.discard,
        }
        if what == "shorten":
            self.store._journal._rewrite()  # type: ignore[union-attr]
        elif (what == "create") != (name in self.acknowledged):
            await calls[what](name, count)

    async def create(self, name: str, count: int) -> None:
        prompt = tuple(range(count))
        request = GenerationRequest(name, prompt, 1000, GREEDY, **self.fields)
        await self.store.create(request, "k", ANYBODY, owned=True)
        self.states[name] = RequestState(request, 0.0, 0, GREEDY, list(prompt))
        self.acknowledged[name] = [], None

    def progress(self, name: str, count: int, final: bool) -> Progress:
        start = self.states[name].new_tokens
        new = list(range(start, start + count))
        return Progress(self.states[name], new, [LogprobRow(-0.5, ((t, -0.5),)) for t in new], start, final)

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


def read(path: Path) -> dict[str, tuple[list[int], FinishReason | None]]:
    """Return the content of the store as a new process reads it."""
    store = EmbeddedStore("next", 60, path=path)
    store.close()
    for entry in store._entries.values():
        assert [row.top for row in entry.logprobs] == [((token, -0.5),) for token in entry.tokens]
    return {n: (e.tokens, e.ending and e.ending.finish) for n, e in store._entries.items()}


@given(STEPS)
def test_the_next_process_reads_what_was_acknowledged(steps: list[tuple[str, int, int, int | None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder, full_disk() as disk:
            path = Path(folder) / "store.jsonl"
            client = Client(path, disk)
            for number, (what, request, count, disk.room) in enumerate(steps):
                try:
                    await client.step(what, request, count)
                except UnavailableError:
                    assert disk.room is not None
                disk.room = None
                copy = Path(folder) / f"killed-{number}"
                shutil.copy(path, copy)
                assert read(copy) == client.acknowledged
            client.store.close()

    asyncio.run(run())


@given(STEPS, PART, PART)
def test_damaged_lines_cost_no_more_than_what_followed_them(
    steps: list[tuple[str, int, int, int | None]], line: float, place: float
) -> None:
    """A damaged line never prevents reading; tokens that are kept are a prefix of the acknowledged ones."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder, full_disk() as disk:
            path = Path(folder) / "store.jsonl"
            client = Client(path, disk)
            await client.create("r9", 3)
            for what, request, count, _ in steps:
                if what != "discard":
                    await client.step(what, request, count)
            client.store.close()
            lines = path.read_bytes().split(b"\n")
            broken = 1 + int(line * (len(lines) - 1))
            lines[broken] = lines[broken][: int(place * (len(lines[broken]) + 1))]
            path.write_bytes(b"\n".join(lines))
            content = read(path)
            assert "r9" in content
            for name, (tokens, end) in content.items():
                known, known_end = client.acknowledged[name]
                assert tokens == known[: len(tokens)]
                assert end is None or (tokens, end) == (known, known_end)
            assert read(path) == content

    asyncio.run(run())


async def test_a_gateway_is_not_ready_while_its_store_cannot_be_written(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with full_disk() as disk:
        client = Client(tmp_path / "store.jsonl", disk)
        request.addfinalizer(
            client.store.close
        )  # also if the test fails: an open file would fail another test
        leases = EmbeddedLeases(client.store, 3.0)
        await client.create("a", 5)
        disk.room = 0
        with pytest.raises(UnavailableError, match="No space left"):
            await client.create("b", 5)
        with pytest.raises(UnavailableError, match="cannot be written"):
            await leases.renew(GatewayReport("me"), [])
        disk.room = None
        await leases.renew(GatewayReport("me"), [])
        assert await client.store.owned() == {"a": 1}


def test_a_full_disk_does_not_keep_a_store_from_opening(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    with full_disk() as disk:
        client = Client(path, disk)
        asyncio.run(client.create("a", 5))
        client.store.close()
        path.write_bytes(path.read_bytes() + b'{"id": "b", "to')
        disk.room = 0
        assert read(path) == {"a": ([], None)}
