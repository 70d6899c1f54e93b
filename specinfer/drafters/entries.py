"""What the engine is asked and answers: one request's part of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specinfer.drafters import TargetTopK
from specinfer.entry_status import EntryStatus
from specinfer.errors import SpecInferError
from specinfer.sampling import SamplingParams
from specinfer.tree import TokenTree, TreeLimits

Draft: TypeAlias = tuple[int, TokenTree | SpecInferError]
"""A speculator, and its tree or why it has none."""


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """One request's part of a step, as it came."""

    request_id: str
    base_len: int
    delta: Sequence[int]
    limits: TreeLimits
    sampling: SamplingParams
    speculators: Sequence[int] = ()
    """Which of them draft; empty asks all."""
    draw_seed: int = 0
    sees_noise: bool = True
    """Whether `sampling` has the seed by which the target chooses."""
    features: bytes = b""
    """[positions, layers, hidden] bfloat16 from a context position on."""
    features_start: int = 0
    target_top_k: TargetTopK | None = None
    references: Sequence[Sequence[int]] = ()
    """Texts that the request may copy from, where it starts over."""


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """What became of an entry."""

    request_id: str
    status: EntryStatus
    message: str = ""
    drafts: tuple[Draft, ...] = ()
    """Speculators with nothing to say are left out."""
    held_len: int = 0
