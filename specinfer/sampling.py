"""Sampling parameters, and keys of requests' random streams.

Must not know tensors: `specinfer.model.sampling.distributions` applies these parameters to logits.
Invariant: every `Sampling` that exists is valid.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

from specinfer.errors import InvalidInputError

MAX_SEED = 2**64 - 1
MAX_REPETITION_PENALTY = 100
MAX_BIASES = 1024
"""Maximum number of tokens with biases."""
_RANGES = {
    "typical_epsilon": (0, 1),
    "typical_delta": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
"""Lowest and highest value of fields."""
_NOISE = 2**32
"""Index of no speculator."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters that shape the target's distribution before sampling.

    Raises:
        InvalidInputError: naming the field and its value.
    """

    temperature: float = 1.0
    """0 is greedy. An unset temperature is 1."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose probability reaches this."""
    seed: int = 0
    """Key of the counter-based random stream."""
    typical_epsilon: float = 0.0
    """Hard threshold of typical acceptance (Medusa), which is lossy; 0: lossless.

    Greedy requests stay lossless: of their distribution only the most probable token is above any threshold.
    """
    typical_delta: float = 0.0
    """Factor of the threshold by entropy; 0: the hard one's square root."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(Token, addition to its logit), each token once."""
    presence_penalty: float = 0.0
    """Subtracted from logits of generated tokens; the prompt's do not count."""
    frequency_penalty: float = 0.0
    """Reduction of a token's logit for each time that it was generated."""
    min_p: float = 0.0
    """Minimum probability relative to the most probable token; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Repetition penalty over prompt and answer.

    It divides positive logits, and multiplies the others.
    """

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise InvalidInputError("temperature", self.temperature, "must be a finite number >= 0")
        if self.top_k < 0:
            raise InvalidInputError("top_k", self.top_k, "must be >= 0")
        if not 0 < self.top_p <= 1:  # also refuses NaN
            raise InvalidInputError("top_p", self.top_p, "must be in (0, 1]")
        if not 0 < self.repetition_penalty <= MAX_REPETITION_PENALTY:  # also refuses NaN
            reason = f"must be in (0, {MAX_REPETITION_PENALTY}]"
            raise InvalidInputError("repetition_penalty", self.repetition_penalty, reason)
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidInputError("seed", self.seed, "must be in [0, 2^64)")
        for name, (lowest, highest) in _RANGES.items():
            if not lowest <= getattr(self, name) <= highest:  # also refuses NaN
                raise InvalidInputError(name, getattr(self, name), f"must be in [{lowest}, {highest}]")
        if self.logit_bias:
            self._check_biases()

    def _check_biases(self) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidInputError("logit_bias", len(self.logit_bias), f"at most {MAX_BIASES} tokens")
        for _, bias in self.logit_bias:
            if not -100 <= bias <= 100:  # also refuses NaN
                raise InvalidInputError("logit_bias", bias, "must be in [-100, 100]")

    def check_tokens(self, vocab_size: int) -> None:
        """Check what depends on the target model.

        Raises:
            InvalidInputError: naming the field and its value.
        """
        for token, _ in self.logit_bias:
            if not 0 <= token < vocab_size:
                # as text, which logs leave out
                raise InvalidInputError("logit_bias", str(token), f"not in the vocabulary of {vocab_size}")

    @property
    def adjusts(self) -> bool:
        """True if logits are changed before anything else."""
        return bool(self.logit_bias or self.presence_penalty or self.frequency_penalty or self.repeats)

    @property
    def repeats(self) -> bool:
        """True if tokens of prompt and answer are penalised."""
        return self.repetition_penalty != 1

    @property
    def cuts(self) -> bool:
        """True if tokens are left out by their rank or probability."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)

    @property
    def lossless(self) -> bool:
        """True if speculation leaves the target's distribution as it is."""
        return self.greedy or not self.typical_epsilon

    @property
    def entropy_factor(self) -> float:
        """Delta of typical acceptance."""
        return self.typical_delta or math.sqrt(self.typical_epsilon)

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always taken."""
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


class StreamDomain(IntEnum):
    """Separates independent uses of one request's seed at one position."""

    VERIFY = 0
    DRAFT = 1


def stream_key(seed: int, position: int, domain: StreamDomain, index: int = 0) -> tuple[int, int]:
    """Return the 64-bit key words of a position's random stream.

    Keyed by position, not by call, so that a resumed request continues with the same stream and
    its batch-mates never change its result. `index` separates several streams at one position
    (drafters: which node).
    """
    return seed, (position << 32) | (index << 1) | domain


def request_seed(seed: int, request_id: str) -> int:
    """Return the seed of a request for which speculators draw.

    Its draws are independent of those of another request that has the same seed.
    """
    digest = blake2b(request_id.encode(), digest_size=8).digest()
    return split_mix(seed, int.from_bytes(digest, "big"))


def draft_seed(seed: int, speculator: int) -> int:
    """Return a speculator's seed: merged drafts must be independent."""
    return split_mix(seed, speculator)


def noise_key(seed: int, position: int) -> int:
    """Return the noise key of a request's position.

    The noise is that of `specinfer.model.sampling.noise`.
    """
    return split_mix(noise_state(seed), position)


def noise_state(seed: int) -> int:
    """Return the SplitMix64 state for a request's noise keys."""
    return split_mix(seed, _NOISE)


def split_mix(state: int, index: int) -> int:
    """Return number `index` of the sequence that SplitMix64 gives from a state."""
    z = (state + (index + 1) * 0x9E3779B97F4A7C15) & MAX_SEED
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MAX_SEED
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MAX_SEED
    return z ^ (z >> 31)
