"""Requests of the clients: greedy and sampled, short and long, with stop strings and log-probabilities."""

import random
from dataclasses import dataclass, field

from specinfer.v1 import common_pb2, generation_pb2
from tests.chaos.verifier import Poison
from tests.support.system import text_of


@dataclass(slots=True)
class Outcome:
    """The tokens and the finish reason that a client received."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish: int = 0
    request_id: str = field(default="", compare=False)


def make_orders(seed: int, count: int, longest: int) -> list[generation_pb2.GenerateRequest]:
    """Return `count` different requests, drawn from a seed, without ids."""
    draw = random.Random(seed)
    return [_make_order(draw, number, longest) for number in range(count)]


def poisonous(poison: Poison) -> generation_pb2.GenerateRequest:
    """Return a request that makes the verifiers of a chaos system raise."""
    sampling = common_pb2.SamplingParams(temperature=0.0, seed=poison)
    return generation_pb2.GenerateRequest(
        text="poison", max_new_tokens=100, sampling=sampling, ignore_eos=True, logprobs=True
    )


def _make_order(draw: random.Random, number: int, longest: int) -> generation_pb2.GenerateRequest:
    prompt = text_of([draw.randrange(3, 97) for _ in range(draw.choice((3, 20, 60)))])
    sampling = common_pb2.SamplingParams(temperature=0.0)
    if number % 2:
        sampling = common_pb2.SamplingParams(
            temperature=draw.choice((0.7, 1.0)), seed=draw.getrandbits(32), top_p=0.95
        )
    letters = [chr(draw.randrange(ord("a"), ord("z") + 1)) for _ in range(2)]
    return generation_pb2.GenerateRequest(
        text=prompt,
        max_new_tokens=draw.randrange(longest // 4, longest),
        sampling=sampling,
        stop_strings=["".join(letters), letters[0].upper()] if number % 4 == 3 else [],
        ignore_eos=number % 8 != 2,
        logprobs=number % 3 == 0,
    )
