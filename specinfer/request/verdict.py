"""Define the verifier's answer for one request of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specinfer.errors import ConstraintError, ExhaustedError, SpecInferError, UnavailableError
from specinfer.request.statuses import EntryStatus, LogprobRow

if TYPE_CHECKING:
    from specinfer.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's answer for one request of a step, from the pass to the store."""

    status: EntryStatus
    message: str = ""
    accepted: tuple[int, ...] = ()
    """Accepted nodes, from the root's child down; empty if none is accepted."""
    bonus: int = 0
    """Token that the target adds after the accepted path; 0 without a tree."""
    logprobs: Sequence[LogprobRow] = ()
    cached_len: int = 0
    """Context tokens in the verifier's cache after the step."""
    features_start: int = 0
    """Context position of the first token with features."""
    features: bytes = b""
    """The target's hidden states at context tokens, for speculators."""
    top_k: tuple[tuple[int, ...], ...] = ()
    """[nodes, k] the target's most probable tokens, for speculators."""
    finished: bool = False
    """True if the bonus token completes the request's constraint."""
    cached_tokens: int = 0
    """Tokens of the delta that were found in the verifier's cache."""

    @classmethod
    def refused(cls, error: SpecInferError, cached_len: int = 0) -> "Verdict":
        """Return the verdict for an error; its type determines the status."""
        status = EntryStatus.INVALID if isinstance(error, ConstraintError) else EntryStatus.ERROR
        if isinstance(error, (ExhaustedError, UnavailableError)):
            status = EntryStatus.EXHAUSTED
        return cls(status, error.for_logs, cached_len=cached_len)

    def tokens(self, tree: "TokenTree") -> list[int]:
        """Return the accepted tokens of `tree` and the bonus token."""
        if not self.accepted:
            return [self.bonus]
        return [*tree.token_ids[list(self.accepted)].tolist(), self.bonus]
