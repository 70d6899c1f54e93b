"""Biases, penalties and log-probabilities over HTTP, with OpenAI's client and a tiny model."""

from typing import Any

import openai
import pytest

from specinfer import AsyncClient
from tests.integration.http.test_http import ASKED, MESSAGES, over_grpc, served

WISH: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 0.5}
BIAS = {60: 4.0, 5: -100.0}


async def test_biases_and_penalties_work_as_over_grpc(redis_url: str) -> None:
    async with served(redis_url) as (system, http), http.openai() as client:
        free = await over_grpc(system)
        for wanted, ours in (
            ({"logit_bias": {str(token): bias for token, bias in BIAS.items()}}, {"logit_bias": BIAS}),
            (WISH, WISH),
        ):
            answer = await client.chat.completions.create(**ASKED, **wanted)
            assert answer.choices[0].message.content == await over_grpc(system, **ours) != free
        only: Any = {"extra_body": {"speculation": "off"}, "logit_bias": {"60": 100}}
        text = (
            (await client.completions.create(model="tiny", prompt="hi", max_tokens=5, **only)).choices[0].text
        )
        assert text == 5 * chr(32 + 60 - 2), "a bias of 100 decides"


async def test_errors_name_fields_out_of_range(redis_url: str) -> None:
    async with served(redis_url) as (_, http), http.openai() as client:
        for fields, param, message in (
            ({"presence_penalty": 2.5}, "presence_penalty", "presence_penalty = 2.5: must be in [-2, 2]"),
            ({"logit_bias": {"97": 1}}, "logit_bias", "logit_bias = '97': must be a token id from 0 to 96"),
            ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias", ": has 1025 entries, at most 1024"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**ASKED, **fields)  # type: ignore[call-overload]
            assert caught.value.param == param
            assert caught.value.body["message"].endswith(message)  # type: ignore[index]


async def test_log_probabilities_of_a_conversation(redis_url: str) -> None:
    async with (
        served(redis_url) as (system, http),
        http.openai() as client,
        AsyncClient(system.address) as ours,
    ):
        expected = await ours.generate(MESSAGES, max_new_tokens=12, logprobs=True, top_logprobs=3)
        requested = {**ASKED, "logprobs": True, "top_logprobs": 3}
        whole = (await client.chat.completions.create(**requested)).choices[0].logprobs
        stream: Any = await client.chat.completions.create(**requested, stream=True)
        pieces = [chunk.choices[0] async for chunk in stream]
        alone = (await client.chat.completions.create(**ASKED, logprobs=True)).choices[0].logprobs
        none = (await client.chat.completions.create(**ASKED)).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert [row.logprob for row in whole.content] == pytest.approx(expected.logprobs, abs=1e-5)
    assert "".join(row.token for row in whole.content).endswith(expected.text[-3:])
    for row, logprob in zip(whole.content, expected.token_logprobs, strict=True):
        assert bytes(row.bytes or []) == logprob.chosen.token == row.token.encode()
        assert [top.token for top in row.top_logprobs] == [top.text for top in logprob.top]
        assert row.top_logprobs[0].logprob == pytest.approx(row.logprob), "greedy"
    streamed = [row for piece in pieces if piece.logprobs for row in piece.logprobs.content or []]
    assert [row.token for row in streamed] == [row.token for row in whole.content]
    assert [len(row.top_logprobs) for row in streamed] == [3] * 12
    assert alone is not None
    assert [row.top_logprobs for row in alone.content or []] == [[]] * 12
    assert none is None


async def test_log_probabilities_of_completions(redis_url: str) -> None:
    requested: Any = {"model": "tiny", "prompt": ["hi", "you"], "max_tokens": 6, "seed": 2}
    async with served(redis_url) as (_, http), http.openai() as client:
        whole = (await client.completions.create(**requested, logprobs=2)).choices
        alone = (await client.completions.create(**requested, logprobs=0)).choices
        parts = [
            chunk.choices[0]
            async for chunk in await client.completions.create(**requested, logprobs=2, stream=True)
        ]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(**requested, logprobs=6)
    assert caught.value.param == "logprobs"
    for index, choice in enumerate(whole):
        logprobs = choice.logprobs
        assert logprobs is not None
        assert "".join(logprobs.tokens or []) == choice.text
        assert logprobs.text_offset == [*range(6)], "a character each"
        for token, value, best in zip(
            logprobs.tokens or [], logprobs.token_logprobs or [], logprobs.top_logprobs or [], strict=True
        ):
            assert best[token] == value
            assert len(best) in (2, 3)
        pieces = [part.logprobs for part in parts if part.index == index and part.logprobs]
        assert [token for one in pieces for token in one.tokens or []] == logprobs.tokens
        assert [at for one in pieces for at in one.text_offset or []] == logprobs.text_offset
        assert alone[index].logprobs is not None
        assert [len(best) for best in alone[index].logprobs.top_logprobs or []] == [1] * 6
