"""Drafters turn contexts into token trees, one method per file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from specinfer.errors import InvalidInputError, SettingError, SpecInferError
from specinfer.options.model_options import AUTO, DraftOptions

if TYPE_CHECKING:  # numpy is not needed to name a drafter
    import numpy as np
    from numpy.typing import NDArray

    from specinfer.drafters.search import References
    from specinfer.request.sampling import Sampling
    from specinfer.tree import TokenTree, TreeLimits

DRAFTERS = {
    "ssm": "specinfer.drafters.ssm:SsmDrafter",
    "eagle": "specinfer.drafters.eagle:EagleDrafter",
    "medusa": "specinfer.drafters.heads:MedusaDrafter",
    "blockwise": "specinfer.drafters.heads:BlockwiseDrafter",
    "dflash": "specinfer.drafters.parallel:DFlashDrafter",
    "dspark": "specinfer.drafters.parallel:DSparkDrafter",
    "peagle": "specinfer.drafters.parallel:PEagleDrafter",
    "mtp": "specinfer.drafters.eagle:MtpDrafter",
    "ngram": "specinfer.drafters.ngram:NgramDrafter",
    "suffix": "specinfer.drafters.suffix:SuffixDrafter",
    "lookahead": "specinfer.drafters.lookahead:LookaheadDrafter",
    "recycling": "specinfer.drafters.recycling:RecyclingDrafter",
    "retrieval": "specinfer.drafters.retrieval:RetrievalDrafter",
    "custom": "specinfer.drafters.custom:CustomDrafter",
}

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Features:
    """Hidden states of the target at consecutive context tokens."""

    start: int
    """Context position of the first state."""
    states: NDArray[np.int16]
    """[positions, layers, hidden] bits of bfloat16."""

    @property
    def stop(self) -> int:
        return self.start + len(self.states)


@dataclass(frozen=True, slots=True)
class TargetTopK:
    """The target's predictions at the nodes of the request's last verified tree."""

    token_ids: NDArray[np.int64]
    """[nodes] tokens of the nodes, the root first."""
    parents: NDArray[np.int32]
    """[nodes] index of each node's parent; the root has -1."""
    top_k: NDArray[np.int64]
    """[nodes, k] the most probable next tokens of each node, best first."""

    @classmethod
    def of(cls, token_ids: Sequence[int], parents: Sequence[int], top_k: Sequence[int]) -> TargetTopK:
        """Build the predictions from flat lists."""
        import numpy as np

        nodes, ids = len(token_ids), len(top_k)
        if not nodes or not ids or ids % nodes:
            raise InvalidInputError(
                *("target_top_k", ids),
                f"must be a positive multiple of {nodes}, the number of nodes",
                "token ids",
            )
        if len(parents) != nodes or any(not -1 <= parent < node for node, parent in enumerate(parents)):
            raise InvalidInputError(
                "target_top_k.parents",
                len(parents),
                f"must have, for each of {nodes} nodes, the index of an earlier node or -1",
                "entries",
            )
        rows = np.array(top_k, np.int64).reshape(nodes, -1)
        return cls(np.array(token_ids, np.int64), np.array(parents, np.int32), rows)


@dataclass(frozen=True, slots=True)
class DraftJob:
    """One request to draft for in a step."""

    request_id: str
    context: Sequence[int]
    """All committed tokens; the last one is the tree's root."""
    limits: TreeLimits
    sampling: Sampling
    """Sampling of the request, with the seed of the target's choices.

    Sampled (drawn) drafts must not depend on this seed.
    """
    draw_seed: int = 0
    """Seed of the drafter's own draws."""
    sees_noise: bool = True
    """True if `sampling` has the target's seed; False: an unrelated seed."""
    features: Features | None = None
    """New hidden states of the target for this drafter, if any."""
    target_top_k: TargetTopK | None = None
    """The target's predictions of the last step, for drafters with `target_top_k`."""
    references: References | None = None
    """Texts that this request may copy from; None without such texts."""
    cache_scope: str = ""
    """Requests share cached prompts only within a scope."""


@dataclass(frozen=True, slots=True)
class DrafterDescription:
    """Properties and abilities of a drafter."""

    model: str = ""
    vocab_size: int = 0
    tokenizer_fingerprint: str = ""
    """Fingerprint of the tokenizer; empty: the drafter works with any tokenizer."""
    max_context_len: int = 0
    """Maximum context tokens; 0 is no limit."""
    draws: bool = False
    """True if the drafter may draw (sample) children for sampled requests.

    Then no speculator of the pool gets the target's seed for such requests.
    """
    feature_layers: tuple[int, ...] = ()
    """Target layers whose hidden states the drafter reads, ascending; empty: none."""
    feature_size: int = 0
    target_top_k: int = 0
    """Number of target predictions per verified node; 0: none."""
    reads_references: bool = False


@dataclass(frozen=True)
class DrafterOptions(DraftOptions):
    """Options of all drafters, with the executor of their models."""

    executor: str = AUTO

    @classmethod
    def read(cls, flags: Mapping[str, str]) -> DrafterOptions:
        """Build options from texts by name, with dashes or underscores."""
        values: dict[str, str | int | float | bool] = {}
        defaults = {field.name: field.default for field in fields(cls)}
        for flag, text in flags.items():
            name = flag.replace("-", "_")
            if name not in defaults:
                raise SettingError(flag, text, f"no flag of drafters; known are {', '.join(defaults)}")
            default = defaults[name]
            kind: Any = type(default)
            try:
                values[name] = _BOOLEANS[text] if isinstance(default, bool) else kind(text)
            except (KeyError, ValueError) as error:
                words = {"bool": "true or false", "int": "a whole number", "float": "a number"}
                raise SettingError(flag, text, f"must be {words[kind.__name__]}") from error
        return cls(**values)  # type: ignore[arg-type]  # values have the types of the defaults


class Drafter(Protocol):
    """A method of drafting: context -> tree, for a batch.

    A drafter may cache state per request. A request may end without `release`.
    """

    @classmethod
    def from_options(cls, options: DrafterOptions) -> Drafter:
        """Load what the drafter needs."""

    @property
    def description(self) -> DrafterDescription:
        """Description of the drafter."""

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        """Return a tree or error per job, in order.

        For a job whose limits allow no nodes, the drafter only extends its cache.
        """

    def release(self, request_id: str) -> None:
        """Drop a request's state; unknown ids are ignored."""


def make_drafter(name: str, options: DrafterOptions) -> Drafter:
    """Return the drafter of this name."""
    if name not in DRAFTERS:
        raise SettingError("drafter", name, f"must be one of {', '.join(DRAFTERS)}")
    module, cls = DRAFTERS[name].split(":")
    drafter: Drafter = getattr(import_module(module), cls).from_options(options)
    return drafter
