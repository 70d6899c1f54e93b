"""Define a request's parameters (`GenerationRequest`) and state (`RequestState`). Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from specinfer.errors import InvalidInputError
from specinfer.request.sampling import Sampling, request_seed
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.text.constraints.constraint import Constraint
from specinfer.tree import TokenMatcher

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
"""Maximum alternatives reported per generated token, as in OpenAI's API."""


class Speculation(IntEnum):
    """Speculation allowed for a request; the protocol has the same numbers."""

    TREE = 1
    SEQUENCE = 2
    OFF = 3
    ALWAYS = 4


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Parameters of a request, with every default filled in."""

    request_id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    """Token ids that end generation; the model's are included unless ignored."""
    priority: int = 0
    speculation: Speculation = Speculation.TREE
    logprobs: bool = False
    top_logprobs: int = 0
    """Number of most probable tokens to report per generated token."""
    caller: str = ""
    """Name of the caller's API key; empty without keys."""
    deadline_s: float | None = None
    """Seconds from arrival to the end of generation; None for no limit."""
    constraint: Constraint | None = None
    """Constraint on the text."""
    no_training: bool = False
    """True if speculators must not learn from the text."""
    references: tuple[tuple[int, ...], ...] = ()
    """Token ids of texts from which drafters may copy."""
    begins_in_reasoning: bool = False
    """True if the prompt ends within reasoning, which the answer continues."""
    cache_salt: str = ""
    """Only requests with the same salt share cached prompts."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidInputError("prompt", "", "must not be empty")
        if self.max_new_tokens <= 0:
            raise InvalidInputError("max_new_tokens", self.max_new_tokens, "must be positive")
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise InvalidInputError(
                "stop_strings", len(self.stop_strings), f"at most {MAX_STOP_STRINGS}", "strings"
            )
        if "" in self.stop_strings:
            raise InvalidInputError("stop_strings", "", "must not be empty")
        if self.deadline_s is not None and not 0 < self.deadline_s < math.inf:  # also refuses NaN
            raise InvalidInputError("deadline_seconds", self.deadline_s, "must be a finite number > 0")

        self._check_top_logprobs()

    def _check_top_logprobs(self) -> None:
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            reason = f"must be in [0, {MAX_TOP_LOGPROBS}]"
            raise InvalidInputError("top_logprobs", self.top_logprobs, reason)
        if self.top_logprobs and not self.logprobs:
            raise InvalidInputError("top_logprobs", self.top_logprobs, "must be 0 without logprobs")

    def check_against(self, vocab_size: int, max_context_len: int) -> None:
        """Check the fields against the target model."""
        references = [("references", text) for text in self.references]
        for name, ids in (("prompt", self.prompt), ("stop_token_ids", self.stop_token_ids), *references):
            for token in (min(ids, default=0), max(ids, default=0)):
                if not 0 <= token < vocab_size:
                    raise InvalidInputError(name, token, f"must be a token id from 0 to {vocab_size - 1}")
        self.sampling.check_tokens(vocab_size)
        if self.top_logprobs > vocab_size:
            reason = f"must be at most {vocab_size}, the size of the vocabulary"
            raise InvalidInputError("top_logprobs", self.top_logprobs, reason)
        total = len(self.prompt) + self.max_new_tokens
        if total > max_context_len:
            raise self.too_long(f"over the context of {max_context_len} tokens")

    def too_long(self, reason: str) -> InvalidInputError:
        """Return the error of a request that exceeds a limit of length."""
        lengths = f"{len(self.prompt)} + {self.max_new_tokens}"
        return InvalidInputError("prompt + max_new_tokens", lengths, reason)

    def drawn_for(self, draws: bool) -> bool:
        """Return whether speculators may sample drafts for this request."""
        return draws and not self.sampling.greedy and self.speculation is not Speculation.OFF


@dataclass(slots=True)
class RequestState:
    """State of a request. The scheduler alone changes it."""

    request: GenerationRequest
    queued_at: float
    """Time of arrival at the request's first gateway, by this gateway's clock."""
    arrival: int
    """Order of submission at this gateway."""
    sampling: Sampling
    """The target's sampling, with a seed unknown to speculators that sample."""
    tokens: list[int]
    """Committed token ids, prompt included. The only authoritative copy."""
    drawn_for: bool = False
    """True if speculators may sample drafts for the request.

    Speculators then must not know the target's random numbers.
    """
    adoption: int = 1
    """Number of the request's owners so far. Each write to the store names it."""
    verifier_len: int = 0
    """Number of committed tokens in the verifier's cache."""
    all_found: bool = False
    """True if the verifier found all `verifier_len` tokens in its cache."""
    cached_tokens: int = 0
    """Tokens of the prompt that the verifier found in its cache."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    finished_at: float | None = None
    finish: FinishReason | None = None
    error: str = ""
    retryable: bool = True
    """True if the same request may succeed when sent again."""
    invalid: bool = False
    """True if the caller's input caused the error."""
    deferred_at: float | None = None
    """Time of the last step if that step deferred the request."""
    deferred_s: float = 0.0
    """Seconds for which all steps have deferred the request."""
    cancelled: bool = False
    preemptions: int = 0
    """Number of times that the request lost its cache to other requests."""
    stats: SpeculationCounts = field(default_factory=SpeculationCounts)
    matcher: TokenMatcher | None = None
    """Matcher of the constraint; None without constraint or before compilation."""
    matched: int = 0
    """Number of generated tokens that the matcher has read."""

    @classmethod
    def new(
        cls,
        request: GenerationRequest,
        arrived_at: float,
        arrival: int,
        drawn_for: bool,
        generated: Sequence[int] = (),
        adoption: int = 1,
    ) -> "RequestState":
        """Create the state of a new or a continued request."""
        sampling = request.sampling
        if drawn_for:
            sampling = replace(sampling, seed=request_seed(sampling.seed, request.request_id))
        return cls(request, arrived_at, arrival, sampling, [*request.prompt, *generated], drawn_for, adoption)

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - self.new_tokens

    @property
    def pending(self) -> int:
        """Number of committed tokens missing in the verifier's cache."""
        return len(self.tokens) - self.verifier_len

    @property
    def place(self) -> tuple[float, int]:
        """Sort key for the order of arrival, valid across gateways."""
        return self.queued_at, self.arrival

    @property
    def deadline_at(self) -> float:
        return math.inf if self.request.deadline_s is None else self.queued_at + self.request.deadline_s

    @property
    def own_end(self) -> FinishReason | None:
        """Reason for ending the request by its tokens; None: it continues."""
        if self.new_tokens and self.tokens[-1] in self.request.stop_token_ids:
            return FinishReason.STOP_TOKEN
        return FinishReason.LENGTH if self.remaining <= 0 else None

    def match(self) -> TokenMatcher | None:
        """Let the matcher read the new generated tokens, and return the matcher."""
        if self.matcher is not None:
            generated = self.tokens[len(self.request.prompt) + self.matched :]
            self.matched += self.matcher.try_read(generated)
        return self.matcher

    def extend(self, tokens: Sequence[int]) -> list[int]:
        """Commit tokens up to the request's end; return the committed tokens."""
        kept = list(tokens[: self.remaining])
        stop = next((i for i, t in enumerate(kept) if t in self.request.stop_token_ids), None)
        if stop is not None:
            kept = kept[: stop + 1]
        self.tokens.extend(kept)
        return kept

    def end(
        self,
        reason: FinishReason,
        now: float,
        error: str = "",
        retryable: bool = True,
        invalid: bool = False,
    ) -> None:
        """Record the reason and the time of the request's end."""
        self.finish, self.finished_at = reason, now
        self.error, self.retryable, self.invalid = error, retryable, invalid
