"""Messages with one request field set, by every way that a request can take."""

from collections.abc import Callable
from typing import Any

from http_svc.body.bodies import ChatBody
from http_svc.to_gateway import chat_requests
from specinfer.client import make_request
from specinfer.llm import SamplingParams
from specinfer.text.chat.forms import ChatForm
from specinfer.v1 import common_pb2
from specinfer.wire.codec import decode_sampling, encode_sampling

OPTIONS: dict[str, Any] = {
    "chat": False,
    "max_new_tokens": 7,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.25,
    "seed": 11,
    "speculation": "sequence",
    "stop": ["a", "b"],
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 2,
    "priority": -4,
    "request_id": "id",
    "deadline_seconds": 1.5,
    "logit_bias": {5: -2.0},
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "min_p": 0.125,
    "repetition_penalty": 1.25,
    "cache_salt": "salt",
    "references": "text",
    "no_training": True,
    "typical_epsilon": 0.0625,
    "json_schema": {"type": "object"},
    "regex": "a+",
    "grammar": "start: /a/",
    "choice": ["x", "y"],
}
"""A value other than the default for each option of a client."""
FIELDS: dict[str, Any] = {
    "max_tokens": 7,
    "max_completion_tokens": 7,
    "temperature": 0.5,
    "top_k": -1,
    "top_p": 0.25,
    "seed": -1,
    "speculation": "off",
    "stop": "a",
    "ignore_eos": True,
    "logprobs": True,
    "logit_bias": {"5": -2},
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "min_p": 0.125,
    "repetition_penalty": 1.25,
    "cache_salt": "salt",
    "references": ["text"],
    "no_training": True,
    "stop_token_ids": [4],
    "n": 2,
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a+"},
}
"""A value other than the default for each field of a chat body that reaches the gateway."""
PARAMS: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": -1,
    "top_p": 0.25,
    "max_tokens": 7,
    "stop": "a",
    "stop_token_ids": [4],
    "ignore_eos": True,
    "logprobs": 2,
    "logit_bias": {5: -2.0},
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "min_p": 0.125,
    "repetition_penalty": 1.25,
    "references": ["text"],
    "speculation": "sequence",
    "typical_epsilon": 0.0625,
    "typical_delta": 0.5,
    "priority": -4,
    "deadline_seconds": 1.5,
}
"""A value other than the default for each parameter of `LLM`."""


def _sampling_both_ways() -> str:
    message = common_pb2.SamplingParams(
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        seed=11,
        typical_epsilon=0.0625,
        typical_delta=0.5,
        logit_bias={5: -2.0},
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        min_p=0.125,
        repetition_penalty=1.25,
    )
    return f"{decode_sampling(message)} {encode_sampling(decode_sampling(message))}"


def _chat(**given: Any) -> str:
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "p"}], **given})
    return " ".join(map(str, chat_requests(body, ChatForm(), "id")))


def _llm(**given: Any) -> str:
    return str(
        SamplingParams(seed=1, **given).request("id", [1], [2], [[3]] if "references" in given else [])
    )


MESSAGES: dict[str, Callable[[], object]] = {
    "client": lambda: make_request("p"),
    **{
        f"client {name}": lambda name=name, value=value: make_request(
            "p", **({"logprobs": True} if name == "top_logprobs" else {}) | {name: value}
        )
        for name, value in OPTIONS.items()
    },
    "http": _chat,
    **{
        f"http {name}": lambda name=name, value=value: _chat(**{name: value})
        for name, value in FIELDS.items()
    },
    "llm": _llm,
    **{f"llm {name}": lambda name=name, value=value: _llm(**{name: value}) for name, value in PARAMS.items()},
    "sampling": lambda: decode_sampling(common_pb2.SamplingParams()),
    "sampling all": _sampling_both_ways,
}
"""Functions that return a message with one field set, by the way and the field."""
