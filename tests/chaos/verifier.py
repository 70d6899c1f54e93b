"""`python -m tests.chaos.verifier`: a verifier whose code cannot bear some requests.

The seed of such a request says which part of the code raises for it, once some tokens are there. Its greedy
text does not hang on the seed otherwise, and clients draw no such seeds.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import verifier_svc.servicer
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.tree_verifier import TreeVerifier
from verifier_svc.__main__ import main
from verifier_svc.requests import HostedRequests

_BEGINS_AT = 8
"""Tokens of the context behind which the code raises: a request of a batch, not one that begins."""


class Poison(IntEnum):
    """Parts that raise, by the seed; larger than any that clients draw."""

    ACCEPTANCE = 2**40
    FEATURES = 2**40 + 1
    """Raises where features beside a verdict are made."""
    ANSWER = 2**40 + 2


class PoisonError(Exception):
    """Nobody foresaw it."""


def poisoned(poison: Poison, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises for jobs of this seed: those in its arguments."""

    def raises(*arguments: Any, **named: Any) -> Any:
        for job in arguments:
            if getattr(getattr(job, "sampling", None), "seed", None) == poison and job.base_len >= _BEGINS_AT:
                raise PoisonError(poison.name)
        return original(*arguments, **named)

    return raises


def spoil() -> None:
    """Changes the verifier's code in this process."""
    TreeVerifier.verify = poisoned(Poison.ACCEPTANCE, TreeVerifier.verify)  # type: ignore[method-assign]
    VerifierEngine._conclude = poisoned(Poison.FEATURES, VerifierEngine._conclude)  # type: ignore[method-assign]
    _spoil_answers()


def _spoil_answers() -> None:
    """An answer has no seed: it is known by its request."""
    ids: set[str] = set()
    decode, encode = HostedRequests._decoded, verifier_svc.servicer.encode_outcome

    def noting(requests: HostedRequests, entry: Any, *rest: Any) -> Any:
        if entry.sampling.seed == Poison.ANSWER and entry.base_len >= _BEGINS_AT:
            ids.add(entry.request_id)
        return decode(requests, entry, *rest)

    def raising(outcome: Any, *drafts: Any) -> Any:
        if outcome.verdict is not None and outcome.request_id in ids:
            raise PoisonError(Poison.ANSWER.name)
        return encode(outcome, *drafts)

    HostedRequests._decoded = noting  # type: ignore[method-assign]
    verifier_svc.servicer.encode_outcome = raising


if __name__ == "__main__":
    spoil()
    main()
