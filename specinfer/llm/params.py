"""`SamplingParams` of `LLM`: vLLM's parameters, and parameters of speculation."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specinfer.errors import InvalidInputError
from specinfer.request.sampling import MAX_SEED, Sampling
from specinfer.scheduling.request import GenerationRequest, Speculation
from specinfer.text.constraints.constraint import Constraint

_ALL = -1
"""vLLM's value of top_k for no limit, like 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one prompt's answers.

    Raises:
        InvalidInputError: naming the field and its value.
    """

    n: int = 1
    """Answers to each prompt; with a seed, answer i has seed + i."""
    temperature: float = 1.0
    """Temperature; 0 takes the most probable token."""
    top_p: float = 1.0
    """Keep the most probable tokens up to this total probability."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 or -1 keeps all."""
    seed: int | None = None
    """Seed of the random stream; None draws one."""
    max_tokens: int = 128
    """Maximum number of generated tokens."""
    stop: str | Sequence[str] | None = None
    """Text that ends the answer and is not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the answer, in addition to the model's own."""
    ignore_eos: bool = False
    """Continue after the model's own end-of-sequence token."""
    logprobs: int | None = None
    """Alternatives reported per token; 0: none; None: no log-probabilities."""
    min_p: float = 0.0
    """Minimum probability relative to the most probable token; 0 keeps all."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens generated before, -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted from a logit for each earlier occurrence, -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens in prompt and answer; 1 changes nothing."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Numbers added to the logits, by token id."""
    constraint: Constraint | None = None
    """JSON schema, regular expression, grammar or choice that the text must match."""
    references: Sequence[str] = ()
    """Texts with passages for drafters to copy; the answer stays the same."""
    speculation: str = "tree"
    """Speculation: "tree", "sequence" (one branch) or "off"."""
    typical_epsilon: float = 0.0
    """Threshold of typical acceptance (Medusa), which is not lossless; 0: off."""
    typical_delta: float = 0.0
    """Factor of typical acceptance's entropy term; 0: the square root of `typical_epsilon`."""
    priority: int = 0
    """Priority; higher runs first."""
    deadline_seconds: float | None = None
    """Maximum seconds of generation; None: no limit."""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidInputError("n", self.n, "must be positive")
        if self.max_tokens < 1:
            raise InvalidInputError("max_tokens", self.max_tokens, "must be positive")
        if self.speculation not in ("tree", "sequence", "off"):
            raise InvalidInputError("speculation", self.speculation, "must be tree, sequence or off")
        if self.seed is not None and not -(2**63) <= self.seed <= MAX_SEED:
            raise InvalidInputError("seed", self.seed, "must be from -2**63 to 2**64 - 1")
        self.sampling(0)

    def sampling(self, choice: int) -> Sampling:
        """Return the token-level parameters of answer number `choice`."""
        seed = secrets.randbits(63) if self.seed is None else (self.seed + choice) % (MAX_SEED + 1)
        return Sampling(
            temperature=self.temperature,
            top_k=0 if self.top_k == _ALL else self.top_k,
            top_p=self.top_p,
            seed=seed,
            typical_epsilon=self.typical_epsilon,
            typical_delta=self.typical_delta,
            logit_bias=tuple((int(token), float(bias)) for token, bias in self.logit_bias.items()),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def request(
        self,
        request_id: str,
        prompt: Sequence[int],
        eos_token_ids: Sequence[int],
        references: Sequence[Sequence[int]] = (),
        choice: int = 0,
    ) -> GenerationRequest:
        """Return the scheduler's form of a request with these parameters.

        Args:
            references: token ids of each text in `self.references`.
            choice: number of the answer, from 0 to `n` - 1.
        """
        eos = () if self.ignore_eos else eos_token_ids
        return GenerationRequest(
            request_id=request_id,
            prompt=tuple(prompt),
            max_new_tokens=self.max_tokens,
            sampling=self.sampling(choice),
            stop_strings=self.stop_strings,
            stop_token_ids=frozenset([*self.stop_token_ids, *eos]),
            priority=self.priority,
            speculation=Speculation[self.speculation.upper()],
            logprobs=self.logprobs is not None,
            top_logprobs=self.logprobs or 0,
            deadline_s=self.deadline_seconds,
            constraint=self.constraint,
            references=tuple(map(tuple, references)),
        )
