"""`python -m tests.chaos.verifier`: a verifier whose code raises for some requests.

The seed of such a request selects the part of the code that raises, after some tokens. Clients never draw such seeds.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import verifier_svc.servicer
from specinfer.request.statuses import EntryStatus
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.tree_verifier import TreeVerifier
from verifier_svc.__main__ import main
from verifier_svc.requests import HostedRequests

_BEGINS_AT = 8
"""Context tokens after which the code raises, so that the request is part of a batch."""


class Poison(IntEnum):
    """Parts of the code that raise, by seed; the seeds are larger than those of clients."""

    ACCEPTANCE = 2**40
    FEATURES = 2**40 + 1
    """Raise where the features of a verdict are computed."""
    ANSWER = 2**40 + 2


class PoisonError(Exception):
    """An unexpected error."""


def poisoned(poison: Poison, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises for jobs with this seed, and otherwise calls `original`."""

    def raises(*arguments: Any, **named: Any) -> Any:
        for job in arguments:
            if getattr(getattr(job, "sampling", None), "seed", None) == poison and job.base_len >= _BEGINS_AT:
                raise PoisonError(poison.name)
        return original(*arguments, **named)

    return raises


def spoil() -> None:
    """Replace parts of the verifier's code in this process."""
    TreeVerifier.verify = poisoned(Poison.ACCEPTANCE, TreeVerifier.verify)  # type: ignore[method-assign]
    VerifierEngine._conclude = poisoned(Poison.FEATURES, VerifierEngine._conclude)  # type: ignore[method-assign]
    _spoil_answers()


def _spoil_answers() -> None:
    """Replace the code that writes answers. An answer has no seed, so its request is remembered."""
    ids: set[str] = set()
    decode, encode = HostedRequests._decoded, verifier_svc.servicer.encode_verdict

    def noting(requests: HostedRequests, entry: Any, *rest: Any) -> Any:
        if entry.sampling.seed == Poison.ANSWER and entry.base_len >= _BEGINS_AT:
            ids.add(entry.request_id)
        return decode(requests, entry, *rest)

    def raising(request_id: str, verdict: Any, *tree: Any) -> Any:
        if verdict.status is EntryStatus.OK and request_id in ids:
            raise PoisonError(Poison.ANSWER.name)
        return encode(request_id, verdict, *tree)

    HostedRequests._decoded = noting  # type: ignore[method-assign]
    verifier_svc.servicer.encode_verdict = raising


if __name__ == "__main__":
    spoil()
    main()
