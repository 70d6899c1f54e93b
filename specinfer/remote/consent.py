"""Consent to learn from a request, for speculator services that do."""

from functools import lru_cache
from hashlib import blake2b

from specinfer.scheduling.request import GenerationRequest
from specinfer.v1 import speculator_pb2


def consent_of(request: GenerationRequest) -> speculator_pb2.LearningConsent | None:
    """Return the permission to learn from a request; None if its caller does not give it."""
    if request.no_training:
        return None
    return speculator_pb2.LearningConsent(caller=_number_of(request.caller), prompt_len=len(request.prompt))


@lru_cache(1024)
def _number_of(caller: str) -> int:
    """Return a number that stands for a caller, the same at every gateway."""
    return int.from_bytes(blake2b(caller.encode(), digest_size=8).digest())
