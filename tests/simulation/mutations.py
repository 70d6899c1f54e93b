"""Faults put into the product, each of which the simulation must find.

A mutation is a function of pytest's `MonkeyPatch`. The comment behind each says what clients would see.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import gateway.store.connection as connection
from gateway.api.request_service import RequestService
from gateway.cluster.follower import Follower
from gateway.cluster.sessions import VerifierSessions
from gateway.session.persist import Persistence
from gateway.session.publish import Publisher, RequestRun
from gateway.session.session import VerifierSession
from gateway.session.token_stream import TokenStream
from gateway.store.records import Known
from gateway.store.redis import RedisStore
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.scheduling.text import StopStrings
from specinfer.text.constraints.masks import RequestMasks
from specinfer.verification.engine import VerifierEngine
from tests.simulation.plan import plan_of
from tests.simulation.world import run

Patch = pytest.MonkeyPatch
MUTATIONS: dict[str, Callable[[Patch], None]] = {}


def _mutation(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTATIONS[function.__name__.removeprefix("_").replace("_", " ")] = function
    return function


def _script(patch: Patch, name: str, *changes: tuple[str, str]) -> None:
    """Change the text of a Redis script."""
    original = connection._read

    def changed(script: str) -> str:
        text = original(script)
        if script == name:
            for old, new in changes:
                assert old in text, (name, old)
                text = text.replace(old, new)
        return text

    patch.setattr(connection, "_read", changed)
    connection.source.cache_clear()


@_mutation
def _a_dropped_run_is_shown_under_the_present_adoption(patch: Patch) -> None:
    """The first wrong token: what was queued stays, and is published when its successor's write succeeds."""
    close, store = RequestRun.close, Persistence._store_and_publish
    left: dict[str, list[Any]] = {}

    def closing(closed: RequestRun) -> None:
        left[closed.request_id] = list(closed._unsent)
        close(closed)

    async def storing(self: Persistence, deliveries: Any) -> None:
        for present, _ in deliveries:
            for item in left.pop(present.request_id, ()):
                self._publisher.publish(present, item)
        await store(self, deliveries)

    patch.setattr(RequestRun, "close", closing)
    patch.setattr(Persistence, "_store_and_publish", storing)
    patch.setattr(TokenStream, "extend", _closing_gaps)


def _closing_gaps(
    self: TokenStream, start: int, tokens: Sequence[int], logprobs: Sequence[Any], ending: Any
) -> bool:
    known = max(0, len(self.tokens) - start)
    self.tokens.extend(tokens[known:])
    self.logprobs.extend(logprobs[known:])
    self.ending = ending
    self._wake()
    return True


@_mutation
def _a_late_refusal_drops_the_present_run(patch: Patch) -> None:
    """The request is in no session until somebody notices, and a grant's tokens are lost; or it never ends."""

    def letting_go(self: Persistence, runs: Sequence[RequestRun]) -> None:
        for refused in runs:
            present = self._runs.pop(refused.request_id, refused)
            present.open = False

    patch.setattr(Persistence, "_let_go", letting_go)


@_mutation
def _tokens_are_published_before_they_are_written(patch: Patch) -> None:
    original = Persistence._store_and_publish

    async def early(self: Persistence, deliveries: Any) -> None:
        for written, items in deliveries:
            for item in items:
                if not item.final and written.open:
                    self._publisher.publish(written, item)
        await original(self, deliveries)

    patch.setattr(Persistence, "_store_and_publish", early)


@_mutation
def _a_write_whose_answer_was_lost_is_appended_twice(patch: Patch) -> None:
    written = "redis.call('SETRANGE', prefix .. 'tokens:' .. id, place, tokens)"
    _script(patch, "append", (written, written.replace("SETRANGE", "APPEND").replace(" place,", "")))


@_mutation
def _a_stop_string_is_not_found_across_a_takeover(patch: Patch) -> None:
    begin = StopStrings.begin
    patch.setattr(StopStrings, "begin", lambda self, request, generated: begin(self, request, ()))


@_mutation
def _a_stale_length_is_served_instead_of_resynchronised(patch: Patch) -> None:
    def claimed(self: VerifierEngine, request_id: str) -> int:
        return claimed.base  # type: ignore[attr-defined,no-any-return]

    admit_all = VerifierEngine._admit_all

    def admitting(self: VerifierEngine, jobs: Any, indexes: Any, outcomes: Any, segments: Any) -> None:
        for index in indexes:
            claimed.base = jobs[index].base_len if jobs[index].request_id in self._cached else 0  # type: ignore[attr-defined]
            admit_all(self, jobs, [index], outcomes, segments)

    patch.setattr(VerifierEngine, "_cached_len", claimed)
    patch.setattr(VerifierEngine, "_admit_all", admitting)


@_mutation
def _a_mask_of_another_position_is_used(patch: Patch) -> None:
    mask = RequestMasks.mask
    patch.setattr(RequestMasks, "mask", lambda self, path: mask(self, path[:-1] if len(path) > 1 else path))


@_mutation
def _the_follower_skips_a_token(patch: Patch) -> None:
    glimpse = RedisStore.glimpse

    async def skipping(self: RedisStore, positions: Any) -> Any:
        return await glimpse(self, {n: Known(k.tokens + 1, k.top_logprobs) for n, k in positions.items()})

    patch.setattr(RedisStore, "glimpse", skipping)


@_mutation
def _blocks_stay_after_a_release(patch: Patch) -> None:
    release = PagedKVCache.release
    count = [0]

    def forgetting(self: PagedKVCache, sequence: Any) -> None:
        count[0] += 1
        if count[0] % 3:
            release(self, sequence)

    patch.setattr(PagedKVCache, "release", forgetting)


@_mutation
def _accepted_nodes_are_not_moved_together(patch: Patch) -> None:
    commit = PagedKVCache.commit
    patch.setattr(
        PagedKVCache, "commit", lambda self, sequence, kept: commit(self, sequence, list(range(len(kept))))
    )


@_mutation
def _a_request_is_given_to_an_ended_session(patch: Patch) -> None:
    """Found by the simulation: its stream counted as local, and nobody filled it."""
    patch.setattr(
        VerifierSession, "_ending", property(lambda self: False, lambda self, value: None), raising=False
    )


@_mutation
def _a_request_that_came_back_is_refused(patch: Patch) -> None:
    """Found by the simulation: adopted by its own gateway while the answer to `create` was on its way."""
    submit = RequestService._submit

    async def unseen(self: RequestService, *arguments: Any) -> Any:
        owns = self._sessions.owns
        patch_owns = lambda request_id: False  # noqa: E731
        self._sessions.owns = patch_owns  # type: ignore[method-assign]
        try:
            return await submit(self, *arguments)
        finally:
            self._sessions.owns = owns  # type: ignore[method-assign]

    patch.setattr(RequestService, "_submit", unseen)


@_mutation
def _a_gap_is_closed_after_a_broken_stream(patch: Patch) -> None:
    """A stream that lost a delivery shows later tokens too early."""
    publish = Publisher.publish
    count = [0]

    def losing(self: Publisher, run: RequestRun, item: Any) -> None:
        count[0] += 1
        if count[0] % 40 or item.final:
            publish(self, run, item)

    patch.setattr(Publisher, "publish", losing)
    patch.setattr(TokenStream, "extend", _closing_gaps)


@_mutation
def _a_disowned_request_keeps_its_stream(patch: Patch) -> None:
    """Its readers wait for a run that has ended."""
    patch.setattr(TokenStream, "followed", property(lambda self: False))


@_mutation
def _an_adopted_request_begins_anew(patch: Patch) -> None:
    take = VerifierSessions.take

    async def without_tokens(self: VerifierSessions, record: Any) -> None:
        await take(self, replace(record, tokens=[1] * len(record.tokens)))

    patch.setattr(VerifierSessions, "take", without_tokens)


@_mutation
def _the_follower_ends(patch: Patch) -> None:
    async def never(self: Follower, followed: Any) -> None:
        return None

    patch.setattr(Follower, "_look", never)


def first_seed_that_finds(name: str, seeds: int) -> int | None:
    """Return the first world in which a mutation breaks a rule; None if none of the first `seeds` does."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            MUTATIONS[name](patch)
            return next((seed for seed in range(seeds) if run(plan_of(seed))), None)
    finally:
        connection.source.cache_clear()
