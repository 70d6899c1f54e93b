"""The store on a real Redis: durable before visible, repeatable, expiring."""

import secrets

import pytest

from gateway.requests.request import FinishReason, GenerationRequest, RequestState
from gateway.requests.step import Progress
from gateway.requests.store import RequestStore
from specinfer.errors import AlreadyExistsError, UnavailableError
from specinfer.sampling import SamplingParams


def state_of(tokens: list[int]) -> RequestState:
    request = GenerationRequest(secrets.token_hex(6), (1, 2), 10, SamplingParams(temperature=0))
    return RequestState(request, 0.0, 0, request.sampling, [1, 2, *tokens])


async def test_tokens_accumulate_and_a_repeated_append_does_not_double_them(redis_url: str) -> None:
    store = RequestStore.connect(redis_url, retention_s=60)
    state = state_of([5, 6])
    request_id = state.request.request_id
    await store.create(state.request)
    await store.append([Progress(state, [5, 6], [], 0, False)])
    state.tokens += [7]
    for _ in range(2):  # the reply to the first attempt was lost
        await store.append([Progress(state, [7], [], 2, False)])
    assert await store.tokens(request_id) == [5, 6, 7]
    assert await store.tokens("another") == []
    assert (await store.state(request_id))["state"] == "running"
    state.finish = FinishReason.LENGTH
    await store.append([Progress(state, [], [], 3, True)])
    assert await store.state(request_id) == {"state": "finished", "finish": "length", "error": ""}
    for key in (f"specinfer:{kind}:{request_id}" for kind in ("request", "state", "tokens")):
        assert 0 < await store._redis.ttl(key) <= 60
    await store.close()


async def test_a_request_that_begins_anew_finds_no_tokens_of_before(redis_url: str) -> None:
    store, state = RequestStore.connect(redis_url, retention_s=60), state_of([1, 49151, 9])
    await store.append([Progress(state, [1, 49151, 9], [], 0, False)])
    await store.append([Progress(state, [8], [], 0, False)])
    assert await store.tokens(state.request.request_id) == [8]
    await store.close()


async def test_a_duplicate_id_is_refused_until_discarded(redis_url: str) -> None:
    store = RequestStore.connect(redis_url, retention_s=60)
    request = state_of([]).request
    await store.create(request)
    with pytest.raises(AlreadyExistsError, match=request.request_id):
        await store.create(request)
    await store.discard(request.request_id)
    await store.create(request)
    await store.close()


async def test_an_absent_redis_is_unavailable() -> None:
    store = RequestStore.connect("redis://127.0.0.1:9/0", retention_s=60)
    with pytest.raises(UnavailableError, match="Redis does not answer"):
        await store.check()
    with pytest.raises(UnavailableError, match="Redis does not answer"):
        await store.create(state_of([]).request)
    await store.close()
