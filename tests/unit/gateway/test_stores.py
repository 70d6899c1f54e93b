"""The embedded store alone, its file, and how requests are written: no server, no Redis."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import BusyLoadingError, MasterDownError, ReadOnlyError, ResponseError

from gateway.api.callers import ANYBODY, Caller
from gateway.store.connection import is_no_primary
from gateway.store.embedded import EmbeddedStore
from gateway.store.records import (
    Glimpse,
    Known,
    decode_content,
    decode_logprobs,
    encode_content,
    encode_logprobs,
    logprobs_width,
)
from specinfer.errors import (
    ExhaustedError,
    SettingError,
)
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import FinishReason, LogprobRow
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.text.constraints.constraint import Constraint
from tests.support.network.redis_pair import RedisPair, redis_pair_fixture  # noqa: F401  # the fixture
from tests.unit.gateway.test_full_disk import opened

BOB = Caller("bob")


def request_of(name: str, prompt: tuple[int, ...] = (1, 2), **fields: Any) -> GenerationRequest:
    return GenerationRequest(name, prompt, 10, Sampling(temperature=0), **fields)


def rows(*values: float) -> list[LogprobRow]:
    return [LogprobRow(value) for value in values]


async def test_content_and_logprobs_survive_encoding() -> None:
    request = GenerationRequest(
        "id",
        (3, 1),
        7,
        Sampling(
            0.5,
            3,
            0.9,
            seed=2**63 + 1,
            logit_bias=((4, -0.1), (9, 2.0)),
            presence_penalty=0.1,
            frequency_penalty=-2,
        ),
        ("a\n",),
        frozenset({4, 9}),
        -2,
        logprobs=True,
        top_logprobs=3,
        constraint=Constraint.choice(["é", '"']),
        references=((5, 6), (7,)),
    )
    assert decode_content("id", encode_content(request)) == request
    values = [-0.1, -1e-9, -123.45678, 0.0, -3.4e38]
    back = decode_logprobs(encode_logprobs(rows(*values)), 0)
    assert [row.chosen for row in back] == pytest.approx(values, rel=1e-8)
    with_tops = [
        LogprobRow(-0.5, ((9_999_999, -0.25), (0, -1.5))),
        LogprobRow(-2.0, ((3, -0.0), (1, -3.0))),
    ]
    text = encode_logprobs(with_tops)
    assert decode_logprobs(text, 2) == with_tops
    assert decode_logprobs(text[logprobs_width(2) :], 2) == with_tops[1:], "places are multiples of the width"


class Read(tuple[int, ...]):
    """Prompt that counts iterations over it in Python."""

    reads = 0

    def __iter__(self) -> Any:
        type(self).reads += 1
        return super().__iter__()


def test_a_record_copies_no_prompt() -> None:
    request = GenerationRequest("id", Read(range(1000)), 10, Sampling(temperature=0))
    assert decode_content("id", encode_content(request)) == replace(request, prompt=tuple(range(1000)))
    assert Read.reads == 1, "only json iterates over the prompt"


async def test_tokens_of_a_minute_are_counted_for_their_caller() -> None:
    now = [1000.0]
    store = EmbeddedStore("me", 60, clock=lambda: now[0])
    caller = Caller("carol", tokens_per_minute=5)
    request = request_of("a", caller="carol")
    state = RequestState(request, 0.0, 0, request.sampling, [1, 2])
    await store.create(request, "k", caller, owned=True)
    await store.append([Progress(state, [5, 6, 7, 8, 9], [], 0, False)], [], "m")
    with pytest.raises(ExhaustedError, match="carol: over 5 tokens per minute"):
        await store.check_quota("b", "k", caller)
    now[0] += 61
    await store.check_quota("b", "k", caller)


async def test_requests_that_are_never_adopted_end_and_ended_ones_are_deleted() -> None:
    now = [1000.0]
    store = EmbeddedStore("me", 60, clock=lambda: now[0])
    for name, deadline_s in (("late", 5.0), ("long", None)):
        await store.create(request_of(name, deadline_s=deadline_s), "k", ANYBODY, owned=False)
    now[0] += 10
    assert await store.abandon(30.0, "nobody was free") == 1
    now[0] += 30
    assert await store.abandon(30.0, "nobody was free") == 1
    late, long = await store.load("late"), await store.load("long")
    assert late is not None
    assert long is not None
    assert late.ending is not None
    assert long.ending is not None
    assert (late.ending.finish, long.ending.finish) == (FinishReason.DEADLINE, FinishReason.ERROR)
    now[0] += 61
    await store.abandon(30.0, "")
    assert await store.load("late") is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"id": "a", "key": "k"}\n', "it has the format of version 0.1: let its requests end"),
        (b"my diary\n\n", "must be a store's file"),
        (b"SQLite format 3\0" * 400, "must be a store's file|is damaged"),
    ],
)
def test_another_file_is_refused_and_stays(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=rf"store = .*/store': (cannot be used: )?({words})"):
        EmbeddedStore("me", 60, path=path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE song (title TEXT)")
    with pytest.raises(SettingError, match="must be a store's file"):
        EmbeddedStore("me", 60, path=path)


async def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with opened(path) as store:
        for name in "abc":
            await store.create(request_of(name, tuple(range(2000))), "k", ANYBODY, owned=True)
    content = path.read_bytes()
    assert len(content) > 20_000
    for place in range(4096, len(content), 4096):
        path.write_bytes(content[:place] + b"\xff" * 4096 + content[place + 4096 :])
        with pytest.raises(
            SettingError, match=r"it is damaged .*: move it away to begin with an empty store"
        ):
            EmbeddedStore("me", 60, path=path)


async def test_a_record_that_cannot_be_decoded_ends(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        for name in ("a", "b"):
            await store.create(request_of(name), "k", ANYBODY, owned=False)
        store.database.execute("UPDATE request SET content = '{}' WHERE id = 'a'")
        assert [record.request.request_id for record in await store.adopt(10, [])] == ["b"]
        assert isinstance((await store.glimpse({"a": Known(0)}))["a"], Glimpse)
        assert await store.owned() == {"b": 2}
        assert await store.adopt(10, []) == []


async def test_a_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "store"
    link = tmp_path / "link"
    link.symlink_to(path)
    async with opened(path):
        for name in (path, link):
            with pytest.raises(SettingError, match="in use"):
                EmbeddedStore("other", 60, path=name)
    async with opened(link):
        assert link.is_symlink()
    async with opened(path):
        pass


async def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    """It has all callers' texts; so has the log next to it."""
    path = tmp_path / "store"
    path.touch(0o644)
    before = os.umask(0)
    try:
        async with opened(path), opened(tmp_path / "new"):
            modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in os.listdir(tmp_path)}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("store", "store-wal", "new", "new-wal"), 0o600)
    with pytest.raises(SettingError, match=r"store = .*missing/store': .*mkdir -m 700"):
        EmbeddedStore("me", 60, path=tmp_path / "missing" / "store")
    assert not (tmp_path / "missing").exists()


async def test_deleted_requests_are_removed_from_the_file(tmp_path: Path) -> None:
    now, path, sizes = [1000.0], tmp_path / "store", list[int]()
    async with opened(path, clock=lambda: now[0]) as store:
        await store.create(request_of("kept"), "k", ANYBODY, owned=True)
        for number in range(60):
            name = f"r{number}"
            await store.create(request_of(name, tuple(range(2000))), "k", ANYBODY, owned=False)
            await store.cancel(name, None)
            now[0] += 10
            await store.abandon(1000.0, "")
            store.database.execute("PRAGMA wal_checkpoint")
            sizes.append(path.stat().st_size)
        assert max(sizes[20:]) <= 2 * max(sizes[:20])
        now[0] += 1000
        await store.abandon(10_000.0, "")
        assert set(await store.glimpse({"kept": Known(0), "r59": Known(0)})) == {"kept", "r59"}
        assert await store.load("r59") is None
        assert await store.load("kept") is not None
    assert path.stat().st_size < min(sizes[20:])


async def test_counts_of_callers_are_deleted() -> None:
    now, request = [1000.0], request_of("a", caller="bob")
    state = RequestState(request, 0.0, 0, request.sampling, [1, 2])
    async with opened(None, clock=lambda: now[0]) as store:
        await store.create(request, "k", BOB, owned=True)
        for place in range(20):
            await store.append([Progress(state, [5], [], place, False)], [], "m")
            now[0] += 60
        await store.abandon(10_000.0, "")
        assert store.database.execute("SELECT count(*) FROM rate").fetchone()[0] <= 2


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (ReadOnlyError("You can't write against a read only replica."), True),
        (MasterDownError("Link with MASTER is down"), True),
        (BusyLoadingError("Redis is loading the dataset in memory"), True),
        (
            ResponseError("Error running script (call to f_1): @user_script:4: -READONLY You"),
            True,
        ),
        (ResponseError("Command # 1 (SET READONLY x) of pipeline caused error: WRONGTYPE no"), False),
        (ResponseError("WRONGTYPE Operation against a key"), False),
    ],
)
def test_which_errors_show_that_the_server_is_not_the_primary(error: Exception, is_it: bool) -> None:
    assert is_no_primary(error) is is_it
