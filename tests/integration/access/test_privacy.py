"""No log line contains the content of a request, whatever fails."""

import logging
import secrets
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.session.verifier import VerifierClient
from gateway.store.connection import redis_reason
from specinfer.drafters import DraftJob
from specinfer.service.logs import DiscreetFormatter
from specinfer.tree import TokenTree
from tests.support.system import ScriptedDrafter, ascii_tokenizer, running_system, text_of

MARKER = "the secret of the marble owl"
TOKENS = ascii_tokenizer().encode(MARKER)
WINDOW = 4
"""Number of consecutive tokens that count as a leak; fewer may occur by chance."""


def everything_logged(caplog: pytest.LogCaptureFixture) -> str:
    """Return all log messages, plain and as a service formats them."""
    formatter = DiscreetFormatter("%(name)s %(message)s")
    return "\n".join(line for r in caplog.records for line in (r.getMessage(), formatter.format(r)))


def leaks(logged: str, tokens: Sequence[int], text: str) -> list[str]:
    """Return the parts of tokens or text that the log contains, with any separator of tokens."""
    windows = [tokens[i : i + WINDOW] for i in range(len(tokens) - WINDOW + 1)]
    leaked = [text] if text in logged else []
    for separator in (", ", ",", " "):
        leaked += [w for w in (separator.join(map(str, window)) for window in windows) if w in logged]
    return leaked


def quotes(kind: type[Exception]) -> Any:
    """Return a drafting function that raises an error that quotes the request."""

    def fail(job: DraftJob) -> TokenTree:
        raise kind(f"{text_of(job.context)} {job.context}")

    return fail


def malformed(job: DraftJob) -> TokenTree:
    """Return a tree with two equal children, which is malformed, and others from the context."""
    tokens = np.array([job.context[-1], *job.context[-5:], job.context[-1]], np.int32)
    return TokenTree(tokens, np.array([-1, *[0] * 6], np.int32), (), np.ones(7, np.float32))


DRAFTERS = {
    "sound": lambda job: TokenTree.root_only(job.context[-1]),
    "foreseen": quotes(RuntimeError),
    "not foreseen": quotes(TypeError),
    "malformed": malformed,
}


@pytest.mark.parametrize("drafter", DRAFTERS)
async def test_no_log_line_contains_content_of_a_request(
    redis_url: str, caplog: pytest.LogCaptureFixture, drafter: str
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_system(redis_url, {"d": ScriptedDrafter(DRAFTERS[drafter])}, hung_s=2.0) as system:
        replies = await system.generate((), text=MARKER, max_new_tokens=24)
        answer = [token for reply in replies for token in reply.token_ids]
        with pytest.raises(grpc.aio.AioRpcError):
            await system.generate((), text=MARKER, stop_strings=[MARKER] * 1000)
        with pytest.raises(grpc.aio.AioRpcError):
            await system.generate((), text=MARKER, request_id=MARKER * 100)
    assert len(answer) == 24
    logged = everything_logged(caplog)
    assert "serving specinfer.v1.Generation" in logged, "the log has lines"
    assert leaks(logged, [*TOKENS, *answer], MARKER) == []
    assert leaks(logged, answer, text_of(answer)) == []
    if drafter != "sound":
        assert "failed" in logged


async def test_a_fault_in_the_gateway_is_logged_without_the_request(
    redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)

    async def fail(self: object, *arguments: Any, **options: Any) -> Any:
        raise ValueError(f"{MARKER} {TOKENS}")

    async with running_system(redis_url) as system:
        with monkeypatch.context() as patched:
            patched.setattr(VerifierClient, "verify", fail)
            with pytest.raises(grpc.aio.AioRpcError, match="ValueError") as caught:
                await system.generate((), text=MARKER)
        assert MARKER not in (caught.value.details() or "")
    logged = [DiscreetFormatter("%(message)s").format(record) for record in caplog.records]
    assert any("ValueError" in line for line in logged)
    assert leaks("\n".join(logged), TOKENS, MARKER) == []


def test_the_check_sees_leaks() -> None:
    """Negative control."""
    assert leaks(f"failed: {TOKENS}", TOKENS, MARKER)
    assert leaks(f"failed: {np.array(TOKENS[3:8])}", TOKENS, MARKER)
    assert leaks(f"failed: {MARKER!r}", TOKENS, MARKER)
    assert not leaks("failed: 24 tokens", TOKENS, MARKER)


@pytest.mark.parametrize("transaction", [False, True])
async def test_errors_of_redis_are_logged_without_the_command(redis_url: str, transaction: bool) -> None:
    async with Redis.from_url(redis_url, decode_responses=True) as redis:
        key = f"test:{secrets.token_hex(4)}"
        await redis.set(key, "text", ex=60)
        with pytest.raises(RedisError) as caught:
            async with redis.pipeline(transaction=transaction) as pipe:
                await pipe.lpush(key, f"({MARKER}) of it", *TOKENS).execute()
    assert leaks(str(caught.value), TOKENS, MARKER), "its client quotes commands"
    assert leaks(redis_reason(caught.value), TOKENS, MARKER) == []
    assert "WRONGTYPE" in redis_reason(caught.value)
    assert redis_reason(RedisError("Connection refused (localhost)")) == "Connection refused (localhost)"
