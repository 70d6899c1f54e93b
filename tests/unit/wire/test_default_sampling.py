"""A model's own defaults of sampling parameters: read, checked, applied where a request says nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.api.callers import ANYBODY
from gateway.api.decode import RequestDecoder
from specinfer.errors import IncompatibleError
from specinfer.request.default_sampling import FILE, default_sampling
from specinfer.request.sampling import Sampling
from specinfer.v1 import common_pb2, generation_pb2
from tests.support.system import EOS, VOCABULARY, ascii_tokenizer

DEFAULTS = {"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125, "repetition_penalty": 1.25}


def write(directory: Path, values: dict[str, Any]) -> dict[str, Any]:
    (directory / FILE).write_text(json.dumps(values))
    return default_sampling(directory)


def test_defaults_are_read_from_the_generation_configuration(tmp_path: Path) -> None:
    assert default_sampling(tmp_path) == {}
    assert write(tmp_path, {**DEFAULTS, "eos_token_id": 5, "do_sample": True, "typical_p": 1.0}) == DEFAULTS
    assert write(tmp_path, {"temperature": None, "top_k": -1, "top_p": 1}) == {"top_p": 1}


BAD: list[tuple[str, Any]] = [
    *[("temperature", value) for value in (-1, "hot", True, float("inf"))],
    *[("top_p", value) for value in (0, float("nan"))],
    *[("top_k", value) for value in (2.5, -2)],
    *(("min_p", 2), ("repetition_penalty", 0)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_default_out_of_range_is_named(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError, match=f"{FILE}: {name} = "):
        write(tmp_path, {name: value})


async def sampled(**fields: Any) -> Sampling:
    decoder = RequestDecoder(
        *(ascii_tokenizer(), VOCABULARY, 512, [EOS]), default_sampling=common_pb2.SamplingParams(**DEFAULTS)
    )
    message = generation_pb2.GenerateRequest(text="hi", max_new_tokens=1)
    message.sampling.CopyFrom(common_pb2.SamplingParams(seed=1, **fields))
    return (await decoder.decode(message, ANYBODY)).sampling


@pytest.mark.parametrize("given", [{}, *[{name: value} for name, value in DEFAULTS.items()]])
async def test_what_a_request_says_is_kept_and_the_rest_is_the_models(given: dict[str, Any]) -> None:
    """Also if it says the value that means nothing, such as temperature 0."""
    neutral = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    said = {name: neutral[name] for name in given}
    assert await sampled(**said) == Sampling(seed=1, **(DEFAULTS | said))
    assert await sampled(**neutral) == Sampling(seed=1, **neutral)
