"""One request: what was asked (`GenerationRequest`), where it stands (`RequestState`), what speculation did.

Pure data; knows no clock, no network and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from specinfer.errors import InvalidInputError
from specinfer.sampling import SamplingParams, request_seed
from specinfer.tree import TokenTree

MAX_STOP_STRINGS = 16


class Speculation(IntEnum):
    """How a request may be speculated on; the numbers are those of the wire."""

    TREE = 1
    SEQUENCE = 2
    OFF = 3


class FinishReason(IntEnum):
    """Why generation ended; the numbers are those of the wire."""

    LENGTH = 1
    STOP_TOKEN = 2
    STOP_STRING = 3
    CANCELLED = 4
    ERROR = 5


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a caller asked for, with every default filled in.

    Raises:
        InvalidInputError: naming the field and its value.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    """Ends generation after any of these, the model's own end-of-sequence ids included unless ignored."""
    priority: int = 0
    speculation: Speculation = Speculation.TREE
    logprobs: bool = False

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidInputError("prompt", "", "must not be empty")
        if self.max_new_tokens <= 0:
            raise InvalidInputError("max_new_tokens", self.max_new_tokens, "must be positive")
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise InvalidInputError("stop_strings", len(self.stop_strings), f"at most {MAX_STOP_STRINGS}")
        if "" in self.stop_strings:
            raise InvalidInputError("stop_strings", "", "must not be empty")

    def check_against(self, vocab_size: int, max_context_len: int) -> None:
        """Checks what depends on the target model.

        Raises:
            InvalidInputError: naming the field and its value.
        """
        for name, ids in (("prompt", self.prompt), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise InvalidInputError(name, token, f"not in the vocabulary of {vocab_size}")
        total = len(self.prompt) + self.max_new_tokens
        if total > max_context_len:
            raise InvalidInputError(
                "prompt + max_new_tokens",
                f"{len(self.prompt)} + {self.max_new_tokens}",
                f"over the context of {max_context_len}",
            )


@dataclass(slots=True)
class SpeculatorCounts:
    """What one speculator contributed to one request."""

    drafted: int = 0
    accepted: int = 0
    wins: int = 0


@dataclass(slots=True)
class SpeculationStats:
    """What speculation did for one request."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)
    """histogram[i]: steps that accepted i drafted tokens."""
    speculators: dict[int, SpeculatorCounts] = field(default_factory=dict)

    def record(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        """Counts one verified tree."""
        self.steps += 1
        self.drafted += len(tree) - 1
        self.accepted += len(accepted)
        self.histogram.extend([0] * (len(accepted) + 1 - len(self.histogram)))
        self.histogram[len(accepted)] += 1
        path = set(accepted)
        for speculator, nodes in _nodes_by_speculator(tree).items():
            counts = self.speculators.setdefault(speculator, SpeculatorCounts())
            counts.drafted += len(nodes)
            counts.accepted += len(nodes & path)
            counts.wins += bool(path) and path <= nodes


def _nodes_by_speculator(tree: TokenTree) -> dict[int, set[int]]:
    nodes: dict[int, set[int]] = {}
    for proposal in tree.proposals:
        nodes.setdefault(proposal.speculator, set()).update(proposal.children)
    return nodes


@dataclass(slots=True)
class RequestState:
    """Where a request stands. The scheduler alone changes it."""

    request: GenerationRequest
    queued_at: float
    arrival: int
    """Order of submission."""
    sampling: SamplingParams
    """How the target chooses: the request's, with a seed of its own if speculators may draw."""
    tokens: list[int]
    """The committed sequence: prompt and generated tokens. This is its only authoritative copy."""
    drawn_for: bool = False
    """Whether speculators may draw for it. Then none of them is shown the noise by which the target
    chooses."""
    verifier_len: int = 0
    """How many of them the verifier holds."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    finish: FinishReason | None = None
    error: str = ""
    retryable: bool = True
    """Whether the same request may succeed later, if it ended with an error."""
    retries: int = 0
    """Consecutive steps in which the verifier had no room."""
    cancelled: bool = False
    preemptions: int = 0
    """How often it had to give its cache to others."""
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    @classmethod
    def new(cls, request: GenerationRequest, now: float, arrival: int, draws: bool) -> "RequestState":
        """That of a request that has just come.

        Args:
            draws: whether any speculator draws for requests that are sampled.
        """
        sampling = request.sampling
        drawn_for = draws and not sampling.greedy and request.speculation is not Speculation.OFF
        if drawn_for:
            sampling = replace(sampling, seed=request_seed(sampling.seed, request.request_id))
        return cls(request, now, arrival, sampling, list(request.prompt), drawn_for)

    @property
    def new_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.request.max_new_tokens - self.new_tokens
