"""The systems that the suite measures, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specinfer.cli.bench import MODES
from specinfer.drafters.pools import Flags, default_speculators, trained_for

UNTRAINED = ("ngram", "suffix", "recycling", "lookahead")
"""Drafters that need neither training nor a text to search."""
DEFAULT, MERGED, ASSISTED = "default pool", "all merged", "Hugging Face assisted"
SEQUENCE_LENGTHS = (4, 6, 8)
"""K of sequence speculation with the default pool."""
WINDOW_TOKENS = 64
"""Tokens of the windowed cache: less than prompt and answer of a quick suite."""


@dataclass(frozen=True, slots=True)
class SuitePool:
    """A local system, and the modes that take turns in it."""

    speculators: Mapping[str, Flags]
    verifier: Flags = field(default_factory=dict)
    gateway: Flags = field(default_factory=dict)
    modes: tuple[str, ...] = tuple(MODES)


def suite_pools(model: str) -> dict[str, SuitePool]:
    """Each method alone, all of them together, the usual pool, its sequences, and a windowed cache."""
    alone = methods(model)
    usual = default_speculators(model)
    sequences = {
        f"sequences, K = {length}": SuitePool(
            usual, gateway={"sequence-length": str(length)}, modes=("incremental", "sequence")
        )
        for length in SEQUENCE_LENGTHS
    }
    window = SuitePool(usual, verifier={"kv-window": str(WINDOW_TOKENS)}, modes=("incremental", "tree"))
    return {
        **{name: SuitePool({name: flags}) for name, flags in alone.items()},
        DEFAULT: SuitePool(usual),
        MERGED: SuitePool(alone),
        **sequences,
        f"windowed cache, {WINDOW_TOKENS} tokens": window,
    }


def methods(model: str) -> dict[str, Flags]:
    """Every drafting method that there is for a model, by name."""
    untrained: dict[str, Flags] = {name: {"drafter": name} for name in UNTRAINED}
    return untrained | {kind: {"drafter": kind, "model": path} for kind, path in trained_for(model).items()}
