"""Grants let the verifier run several steps per message, and change no token."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from gateway.store.redis import RedisStore
from specinfer.drafters import Drafter
from specinfer.remote import resident
from specinfer.v1 import verifier_pb2
from tests.support.oracle import first, greedy, never
from tests.support.system import ScriptedDrafter, running_system
from verifier_svc.servicer import VerifierServicer

PROMPT = [5, 17, 3, 88, 41]
OTHER = [9, 8, 7, 30]
TOKENS = 49
"""One token of the prompt's pass, and three grants of sixteen plain steps."""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make grants so long that their time never ends them."""
    monkeypatch.setattr(resident, "GRANT_S", 1000.0)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[verifier_pb2.VerifyRequest]:
    requests: list[verifier_pb2.VerifyRequest] = []
    serve = VerifierServicer._serve

    def noted(self: VerifierServicer, request: verifier_pb2.VerifyRequest) -> Any:
        requests.append(request)
        return serve(self, request)

    monkeypatch.setattr(VerifierServicer, "_serve", noted)
    return requests


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of items of each write of tokens to Redis."""
    sizes: list[int] = []
    append = RedisStore.append

    async def noted(self: RedisStore, progress: Any, *rest: Any) -> Any:
        sizes.append(len(progress))
        return await append(self, progress, *rest)

    monkeypatch.setattr(RedisStore, "append", noted)
    return sizes


async def test_plain_decoding_needs_a_message_and_a_write_for_sixteen_tokens(
    redis_url: str, messages: list[Any], writes: list[int]
) -> None:
    async with running_system(redis_url) as system:
        assert await system.tokens(PROMPT, max_new_tokens=TOKENS) == greedy(PROMPT, TOKENS)
    assert [message.grant.steps for message in messages] == [1, 16, 16, 16]
    assert len(writes) <= len(messages), "the tokens of a message are written together"


async def test_resident_trees_need_no_message_of_their_own(redis_url: str, messages: list[Any]) -> None:
    drafter = ScriptedDrafter(first(3))
    async with running_system(redis_url, {"own": drafter}, resident=True, tree_nodes=3) as system:
        assert await system.tokens(PROMPT, max_new_tokens=1 + 4 * 16) == greedy(PROMPT, 1 + 4 * 16)
    assert len(messages) == 2
    assert not any(entry.HasField("tree") for message in messages for entry in message.entries)


async def test_independent_speculators_have_one_step_a_message(redis_url: str, messages: list[Any]) -> None:
    """This holds with residents, too, whose trees are merged in the verifier's process."""
    drafters: dict[str, Drafter] = {"own": ScriptedDrafter(never), "other": ScriptedDrafter(first(3))}
    async with running_system(redis_url, drafters, resident={"own"}, tree_nodes=6, tree_depth=3) as system:
        replies = await system.generate(PROMPT, max_new_tokens=1 + 4 * 5)
        assert [token for reply in replies for token in reply.token_ids] == greedy(PROMPT, 1 + 4 * 5)
    assert {message.grant.steps for message in messages} == {1}
    won = {row.name: row.accepted for row in replies[-1].summary.stats.speculators}
    assert won["own"] == 0
    assert won["other"] >= 12


async def test_a_fault_within_a_grant_loses_no_token(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps before it count; the verifier drops the request, and the next message starts it over."""
    async with running_system(redis_url) as system:
        verify, seen = system.verifier.verify, Counter[str]()

        def failing(jobs: Any) -> Any:
            seen["passes"] += 1
            if seen["passes"] in (5, 40):
                raise RuntimeError("out of luck")
            return verify(jobs)

        monkeypatch.setattr(system.verifier, "verify", failing)
        assert await system.tokens(OTHER, max_new_tokens=TOKENS) == greedy(OTHER, TOKENS)
    assert seen["passes"] > 40


async def test_a_request_that_arrives_ends_a_grant(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, messages: list[Any]
) -> None:
    """The verifier's fifth pass lasts until the new request's call waits for its thread."""
    async with running_system(redis_url) as system:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        verify, seen, steps = system.verifier.verify, Counter[str](), list[int]()
        (servicer,) = system.servicers

        def slow(jobs: Any) -> Any:
            seen["passes"] += 1
            if seen["passes"] == 5:
                loop.call_soon_threadsafe(arrived.set)
                while not servicer._thread.waiting:
                    threading.Event().wait(0.001)
            return verify(jobs)

        run = system.host.run

        def counted(*arguments: Any) -> Any:
            reply = run(*arguments)
            steps.append(len(reply))
            return reply

        monkeypatch.setattr(system.verifier, "verify", slow)
        monkeypatch.setattr(system.host, "run", counted)
        first_one = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=TOKENS))
        await arrived.wait()
        assert await system.tokens(OTHER, max_new_tokens=TOKENS) == greedy(OTHER, TOKENS)
        assert await first_one == greedy(PROMPT, TOKENS)
    assert steps[:2] == [1, 4], "the prompt's, and the grant that was ended"


async def test_constraints_force_tokens_within_a_grant(redis_url: str, messages: list[Any]) -> None:
    """Every step of a grant verifies forced tokens as a tree, not only the first."""
    text = "the-quick-brown-fox-jumps-over-the-lazy-dog"
    async with running_system(redis_url) as system:
        replies = await system.generate(PROMPT, max_new_tokens=60, constraint={"choice": {"texts": [text]}})
    assert "".join(reply.text for reply in replies) == text
    assert replies[-1].summary.stats.steps < len(text) / 2
