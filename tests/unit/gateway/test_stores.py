"""The embedded store alone, its file, and how requests are written: no server, no Redis."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import BusyLoadingError, MasterDownError, ReadOnlyError, ResponseError

from gateway.api.callers import ANYBODY, Caller
from gateway.store import journal
from gateway.store.connection import is_no_primary
from gateway.store.embedded import EmbeddedStore
from gateway.store.keys import logprobs_width
from gateway.store.records import (
    decode_content,
    decode_logprobs,
    encode_content,
    encode_logprobs,
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

BOB = Caller("bob")


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
    request = GenerationRequest("a", (1, 2), 10, Sampling(temperature=0), caller="carol")
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
        request = GenerationRequest(name, (1, 2), 10, Sampling(temperature=0), deadline_s=deadline_s)
        await store.create(request, "k", ANYBODY, owned=False)
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


def test_a_torn_last_line_is_dropped_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    path.write_text('{"id": "a", "to')
    EmbeddedStore("me", 60, path=path).close()
    assert path.read_text() == ""
    for text in ('{"id": "a", "to\n{}\n', "my diary\n\n", '{"id": "x", "tokens": [1]}\n'):
        path.write_text(text)
        with pytest.raises(SettingError, match=r"store = .*store\.jsonl':"):
            EmbeddedStore("me", 60, path=path)
        assert path.read_text() == text


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    link = tmp_path / "link"
    link.symlink_to(path)
    first = EmbeddedStore("me", 60, path=path)
    for name in (path, link):
        with pytest.raises(SettingError, match="in use"):
            EmbeddedStore("other", 60, path=name)
    first.close()
    EmbeddedStore("other", 60, path=link).close()
    assert link.is_symlink()
    EmbeddedStore("other", 60, path=path).close()


def test_only_the_owner_may_read_or_lock_the_file(tmp_path: Path) -> None:
    """It has all callers' texts, and a lock by another user would end the start of a server."""
    path = tmp_path / "store.jsonl"
    path.touch(0o644)  # as older versions made it
    path.with_name("store.jsonl.lock").touch(0o644)
    before = os.umask(0)
    try:
        for name in (path, tmp_path / "new"):
            EmbeddedStore("me", 60, path=name).close()
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    with pytest.raises(SettingError, match=r"store = .*missing/store\.jsonl'"):
        EmbeddedStore("me", 60, path=tmp_path / "missing" / "store.jsonl")
    assert not (tmp_path / "missing").exists()


async def test_deleted_requests_are_removed_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SMALL", 0)
    now, path = [1000.0], tmp_path / "store.jsonl"
    store, sizes, kept = EmbeddedStore("me", 60, path=path, clock=lambda: now[0]), list[int](), "kept"
    await store.create(GenerationRequest(kept, (1, 2), 10, Sampling(temperature=0)), "k", ANYBODY, owned=True)
    for number in range(60):
        request = GenerationRequest(f"r{number}", (1, 2), 10, Sampling(temperature=0))
        await store.create(request, "k", ANYBODY, owned=False)
        await store.cancel(request.request_id, None)
        now[0] += 10
        await store.abandon(1000.0, "")
        sizes.append(path.stat().st_size)
    assert max(sizes[20:]) <= 2 * max(sizes[:20])
    state = RequestState(
        GenerationRequest(kept, (1, 2), 10, Sampling(temperature=0)), 0.0, 0, Sampling(temperature=0), [1, 2]
    )
    await store.append([Progress(state, [7], [], 0, False)], [], "m")  # to the new file
    store.close()
    again = EmbeddedStore("me", 60, path=path, clock=lambda: now[0] + 1000)
    assert '"id": "r' not in path.read_text(), "ended requests past retention go when it is opened"
    record = await again.load(kept)
    assert record is not None
    assert record.tokens == [7]
    again.close()


async def test_a_file_that_cannot_be_shortened_remains_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SMALL", 0)
    path = tmp_path / "store.jsonl"
    store = EmbeddedStore("me", 60, path=path)
    (tmp_path / "store.jsonl.new").mkdir()
    for name in ("a", "b"):
        request = GenerationRequest(name, (1, 2), 10, Sampling(temperature=0))
        await store.create(request, "k", ANYBODY, owned=True)
        await store.abandon(1000.0, "")
    store.close()
    (tmp_path / "store.jsonl.new").rmdir()
    again = EmbeddedStore("me", 60, path=path)
    assert await again.load("b") is not None
    again.close()


async def test_counts_of_callers_without_a_quota_are_deleted() -> None:
    now = [1000.0]
    store = EmbeddedStore("me", 60, clock=lambda: now[0])
    request = GenerationRequest("a", (1, 2), 500, Sampling(temperature=0), caller="bob")
    state = RequestState(request, 0.0, 0, request.sampling, [1, 2])
    await store.create(request, "k", BOB, owned=True)
    for place in range(200):
        await store.append([Progress(state, [5], [], place, False)], [], "m")
        now[0] += 1
    assert len(store._rates["bob"]) <= 62


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
