"""What the engine is asked and answers: one request's part of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from specinfer.constraints.constraint import Constraint
from specinfer.entry_status import EntryStatus
from specinfer.logprobs import TokenLogprobs
from specinfer.sampling import SamplingParams
from specinfer.tree import TokenTree
from specinfer.verification.acceptance import Verdict
from specinfer.verification.features import NO_FEATURES, FeatureSpan


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """One request's part of a step."""

    request_id: str
    base_len: int
    delta: Sequence[int]
    tree: TokenTree | None
    sampling: SamplingParams
    logprobs: bool = False
    top_logprobs: int = 0
    """Most probable tokens wanted beside each returned one."""
    top_k: int = 0
    features_from: int | None = None
    """First context position whose features are wanted."""
    prompt_len: int = 0
    """Context tokens that were not generated; told by jobs that start over (base_len 0)."""
    constraint: Constraint | None = None
    """What the text must look like; told by jobs that start over."""


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """What became of a job."""

    request_id: str
    status: EntryStatus
    message: str = ""
    verdict: Verdict | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    held_len: int = 0
    top_k: tuple[tuple[int, ...], ...] = ()
    features: FeatureSpan = NO_FEATURES
    finished: bool = False
    """The bonus token completes what the constraint asks for."""
