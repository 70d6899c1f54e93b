"""Defines sampling parameters, and the keys of requests' random streams.

This module imports no tensors: `specinfer.model.sampling.distributions` applies the parameters to logits.
Invariant: every `Sampling` object is valid.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import get_type_hints

from specinfer.errors import InvalidInputError
from specinfer.request.fields import NumberInterval, SamplingFields

MAX_SEED = 2**64 - 1
MAX_BIASES = 1024
"""Maximum tokens in `logit_bias`."""
_INTERVALS = {
    name: NumberInterval(0) if isinstance(values, range) else values
    for name, hint in get_type_hints(SamplingFields, include_extras=True).items()
    for values in hint.__metadata__
    if isinstance(values, range | NumberInterval)
} | {"typical_delta": NumberInterval(0, 1)}
_BOUNDS = [(name, values.low, values.high, values.above) for name, values in _INTERVALS.items()]
"""Field, minimum, maximum, and whether the minimum is excluded: faster than attributes."""
_NOISE = 2**32
"""Stream index for the noise's seed; indices of speculators are smaller."""


@dataclass(frozen=True)
class Sampling(SamplingFields):
    """Parameters that shape the target's distribution before sampling.

    Greedy requests stay lossless with typical acceptance, as only the most probable token passes any threshold.

    Raises:
        InvalidInputError: naming the field and its value.
    """

    seed: int = 0
    """Seed of the random streams; each stream also depends on a position."""
    typical_delta: float = 0.0
    """Delta of typical acceptance; 0: the square root of epsilon."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, addition to its logit), each token once."""

    def __post_init__(self) -> None:
        for name, low, high, above in _BOUNDS:
            value = getattr(self, name)
            if not low <= value <= high or (above and value == low):  # also refuses NaN
                raise InvalidInputError(name, value, f"must be {_INTERVALS[name]}")
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidInputError("seed", self.seed, "must be in [0, 2^64)")
        if self.logit_bias:
            self._check_biases()

    def _check_biases(self) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidInputError("logit_bias", len(self.logit_bias), f"at most {MAX_BIASES}", "tokens")
        for _, bias in self.logit_bias:
            if not -100 <= bias <= 100:  # also refuses NaN
                raise InvalidInputError("logit_bias", bias, "must be in [-100, 100]")

    def check_tokens(self, vocab_size: int) -> None:
        """Check that all tokens of `logit_bias` are in the target's vocabulary.

        Raises:
            InvalidInputError: naming the field and its value.
        """
        for token, _ in self.logit_bias:
            if not 0 <= token < vocab_size:
                # as a string, which `for_logs` leaves out
                raise InvalidInputError(
                    "logit_bias", str(token), f"must be a token id from 0 to {vocab_size - 1}"
                )

    @property
    def adjusts(self) -> bool:
        """True if biases or penalties change logits."""
        return bool(self.logit_bias or self.presence_penalty or self.frequency_penalty or self.repeats)

    @property
    def repeats(self) -> bool:
        """True if the repetition penalty has an effect."""
        return self.repetition_penalty != 1

    @property
    def cuts(self) -> bool:
        """True if top_k, top_p or min_p remove tokens."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)

    @property
    def lossless(self) -> bool:
        """True if speculation preserves the target's distribution."""
        return self.greedy or not self.typical_epsilon

    @property
    def entropy_factor(self) -> float:
        """Delta of typical acceptance, with its default applied."""
        return self.typical_delta or math.sqrt(self.typical_epsilon)

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always chosen."""
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


class StreamDomain(IntEnum):
    """Use of a random stream; streams of different uses are independent."""

    VERIFY = 0
    DRAFT = 1


def stream_key(seed: int, position: int, domain: StreamDomain, index: int = 0) -> tuple[int, int]:
    """Return the key, two 64-bit words, of a position's random stream.

    The key depends on the position, not on the call, so that resuming a request or batching it with others does not
    change its result. `index` separates several streams at one position (for drafters, the node).
    """
    return seed, (position << 32) | (index << 1) | domain


def request_seed(seed: int, request_id: str) -> int:
    """Return the target's seed for a request whose trees contain draws.

    Requests with equal seeds and different ids then have independent draws.
    """
    digest = blake2b(request_id.encode(), digest_size=8).digest()
    return split_mix(seed, int.from_bytes(digest, "big"))


def draft_seed(seed: int, speculator: int) -> int:
    """Return a speculator's seed: draws of different speculators must be independent."""
    return split_mix(seed, speculator)


def noise_key(seed: int, position: int) -> int:
    """Return the key of a request's noise at a position (`sampling.noise`)."""
    return split_mix(noise_state(seed), position)


def noise_state(seed: int) -> int:
    """Return the SplitMix64 state that generates a request's noise keys."""
    return split_mix(seed, _NOISE)


def split_mix(state: int, index: int) -> int:
    """Return number `index` in the sequence that SplitMix64 generates from a state."""
    z = (state + (index + 1) * 0x9E3779B97F4A7C15) & MAX_SEED
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MAX_SEED
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MAX_SEED
    return z ^ (z >> 31)
