"""One request's part of a step: what is asked of the services, what the verifier answers, what came of it.
Pure data."""

from dataclasses import dataclass

from specinfer.entry_status import EntryStatus
from specinfer.logprobs import TokenLogprobs
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.speculation import TreeOutcome
from specinfer.tree import TreeLimits


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One request's part of a step."""

    state: RequestState
    base_len: int
    delta: tuple[int, ...]
    final: bool
    """Whether the delta reaches the end of the committed tokens, so that a tree can follow."""
    limits: TreeLimits
    reach: int
    """Most depth of any node, whoever proposes it."""
    forced: int = 0
    """Most nodes beside those for tokens that the request's constraint forces."""

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.state.request.request_id

    @property
    def drafts(self) -> bool:
        """Whether speculators should be asked."""
        return self.final and not self.limits.empty


@dataclass(frozen=True, slots=True)
class VerdictEntry:
    """What the verifier answered for one entry."""

    status: EntryStatus
    message: str = ""
    accepted: tuple[int, ...] = ()
    bonus: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    held_len: int = 0
    features_start: int = 0
    """Context position of the first of the features."""
    features: bytes = b""
    """Of the target at context tokens, on their way to speculators."""
    top_k: tuple[int, ...] = ()
    """[nodes * k] the target's most probable tokens at the nodes of the tree, on their way to speculators."""
    finished: bool = False
    """The bonus token completes what the request's constraint asks for."""


@dataclass(slots=True)
class Progress:
    """New tokens of one request, and its end if this is it. Complete by itself: the request may have
    moved on by the time it is stored."""

    state: RequestState
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    start: int
    """Generated tokens before these."""
    final: bool
    """Whether the request ends with them."""

    since_s: float | None = None
    """Seconds since the tokens before these; None for the first ones of this gateway."""
    outcome: TreeOutcome | None = None
    """What came of the tree that was verified for it."""
    published: bool = False
    """Whether it is stored and shown."""

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.state.request.request_id

    def cut(self, keep: int) -> None:
        """Takes back all but the first `keep` of its tokens, from the request, too."""
        drop = len(self.tokens) - keep
        if drop:
            del self.state.tokens[-drop:]
            del self.tokens[keep:], self.logprobs[keep:]
