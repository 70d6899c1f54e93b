"""Biases, penalties and log-probabilities over HTTP: real clients and a real system with a tiny model."""

from typing import Any

import openai
import pytest

from tests.integration.test_http import ASKED, over_grpc, served

WISH: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 0.5}
BIAS = {60: 4.0, 5: -100.0}


async def test_biases_and_penalties_arrive_as_over_grpc(redis_url: str) -> None:
    async with served(redis_url) as (system, http), http.openai() as client:
        free = await over_grpc(system)
        for wish, ours in (
            ({"logit_bias": {str(token): bias for token, bias in BIAS.items()}}, {"logit_bias": BIAS}),
            (WISH, WISH),
        ):
            answer = await client.chat.completions.create(**ASKED, **wish)
            assert answer.choices[0].message.content == await over_grpc(system, **ours) != free
        only: Any = {"extra_body": {"speculation": "off"}, "logit_bias": {"60": 100}}
        text = (
            (await client.completions.create(model="tiny", prompt="hi", max_tokens=5, **only)).choices[0].text
        )
        assert text == 5 * chr(32 + 60 - 2), "100 is as good as alone"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty", "presence_penalty = 2.5: must be in [-2, 2]"),
        ({"frequency_penalty": -3}, "frequency_penalty", "frequency_penalty = -3.0: must be in [-2, 2]"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "logit_bias = 101.0: must be in [-100, 100]"),
        ({"logit_bias": {"5": 1e300}}, "logit_bias", "logit_bias = inf: must be in [-100, 100]"),
        ({"logit_bias": {"97": 1}}, "logit_bias", "logit_bias = '97': not in the vocabulary of 97"),
        (
            {"logit_bias": {str(token): 1 for token in range(1025)}},
            "logit_bias",
            "logit_bias = 1025: at most 1024 tokens",
        ),
    ],
)
async def test_what_is_out_of_range_is_refused_by_name(
    redis_url: str, fields: dict[str, Any], param: str, message: str
) -> None:
    async with served(redis_url) as (_, http), http.openai() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**ASKED, **fields)
    assert caught.value.param == param
    assert caught.value.body["message"] == message  # type: ignore[index]
