"""`SamplingParams` of `LLM`: vLLM's parameters, and parameters of speculation."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated

from specinfer.errors import InvalidInputError
from specinfer.options.model_options import Option
from specinfer.request.fields import SPECULATIONS, GenerationFields, RequestFields
from specinfer.request.sampling import MAX_SEED, Sampling
from specinfer.scheduling.request import GenerationRequest, Speculation
from specinfer.text.constraints.constraint import Constraint, ConstraintKind

_ALL = -1
"""vLLM's value of top_k for no limit, like 0."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams(GenerationFields):
    """Parameters of one prompt's answers.

    Raises:
        InvalidInputError: naming the field and its value.
    """

    n: Annotated[int, Option("Answers to each prompt; with a seed, answer i has seed + i.")] = 1
    top_k: Annotated[int, Option("Keep the k most probable tokens; 0 or -1 keeps all.")] = 0
    max_tokens: Annotated[int, Option("Maximum number of generated tokens.")] = 128
    stop: Annotated[
        str | Sequence[str] | None, Option("Text that ends the answer and is not part of it.")
    ] = None
    stop_token_ids: Annotated[
        Sequence[int], Option("Tokens that end the answer, in addition to the model's own.")
    ] = ()
    logprobs: Annotated[
        int | None, Option("Alternatives reported per token; 0: none; None: no log-probabilities.")
    ] = None
    logit_bias: Annotated[Mapping[int, float], Option("Numbers added to the logits, by token id.")] = field(
        default_factory=dict
    )
    constraint: Annotated[
        Constraint | None,
        Option("JSON schema, regular expression, grammar or choice that the text must match."),
    ] = None
    references: Annotated[
        Sequence[str], Option("Texts with passages for drafters to copy; the answer stays the same.")
    ] = ()
    typical_delta: Annotated[
        float,
        Option("Factor of typical acceptance's entropy term; 0: the square root of `typical_epsilon`."),
    ] = 0.0

    @classmethod
    def of(cls, request: RequestFields) -> "SamplingParams":
        """Return the parameters of a request for a gateway."""
        same = {f.name: getattr(request, f.name) for f in fields(cls) if hasattr(request, f.name)}
        references = request.references
        own = {
            "max_tokens": request.max_new_tokens,
            "logprobs": request.top_logprobs if request.logprobs else None,
            "logit_bias": request.logit_bias or {},
            "references": (references,) if isinstance(references, str) else references,
            "constraint": Constraint.of({kind: getattr(request, kind) for kind in ConstraintKind}),
        }
        return cls(**{**same, **own})

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidInputError("n", self.n, "must be positive")
        if self.max_tokens < 1:
            raise InvalidInputError("max_tokens", self.max_tokens, "must be positive")
        if self.speculation not in SPECULATIONS:
            raise InvalidInputError(
                "speculation", self.speculation, f"must be one of {', '.join(SPECULATIONS)}"
            )
        if self.seed is not None and not -(2**63) <= self.seed <= MAX_SEED:
            raise InvalidInputError("seed", self.seed, "must be from -2**63 to 2**64 - 1")
        self.sampling(0)

    def sampling(self, choice: int) -> Sampling:
        """Return the token-level parameters of answer number `choice`."""
        seed = secrets.randbits(63) if self.seed is None else (self.seed + choice) % (MAX_SEED + 1)
        same = {f.name: getattr(self, f.name) for f in fields(Sampling)}
        biases = tuple((int(token), float(bias)) for token, bias in self.logit_bias.items())
        top_k = 0 if self.top_k == _ALL else self.top_k
        return Sampling(**{**same, "top_k": top_k, "seed": seed, "logit_bias": biases})

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
