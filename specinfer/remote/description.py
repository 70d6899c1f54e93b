"""Encode descriptions of speculators, scopes of requests, and consent to learning."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from specinfer.drafters.engine import SpeculatorEngine
from specinfer.scheduling.request import GenerationRequest
from specinfer.v1 import speculator_pb2


def consent_of(request: GenerationRequest) -> speculator_pb2.LearningConsent | None:
    """Return the caller's consent to learn from a request; None if refused."""
    if request.no_training:
        return None
    return speculator_pb2.LearningConsent(caller=_number_of(request.caller), prompt_len=len(request.prompt))


def scope_of(request: GenerationRequest, by_caller: bool) -> str:
    """Return an anonymous id of a request's salt, and caller if `by_caller`.

    Requests of one scope share cached prompts.
    """
    parts = (request.caller if by_caller else "", request.cache_salt)
    return f"{_number_of(chr(0).join(filter(None, parts))):x}" if any(parts) else ""


@lru_cache(1024)
def _number_of(caller: str) -> int:
    """Return an anonymous number for a caller, the same at every gateway."""
    return int.from_bytes(blake2b(caller.encode(), digest_size=8).digest())


def describe(
    engine: SpeculatorEngine, names: Sequence[str], methods: Sequence[str], instance_id: str = ""
) -> speculator_pb2.DescribeSpeculatorReply:
    """Encode the answer of `Describe`.

    `names` and `methods` have one element per drafter of the engine; `instance_id` identifies the process.
    """
    speculators = [
        speculator_pb2.SpeculatorDescription(
            name=name,
            drafter=method,
            model=drafter.description.model,
            vocab_size=drafter.description.vocab_size,
            draws=drafter.description.draws,
        )
        for name, method, drafter in zip(names, methods, engine.drafters, strict=True)
    ]
    return speculator_pb2.DescribeSpeculatorReply(
        speculators=speculators,
        tokenizer_fingerprint=engine.description.tokenizer_fingerprint,
        max_context_len=engine.description.max_context_len,
        max_nodes=engine.max_nodes,
        instance_id=instance_id,
        feature_layers=engine.description.feature_layers,
        feature_size=engine.description.feature_size,
        target_top_k=engine.description.target_top_k,
        reads_references=engine.description.reads_references,
    )
