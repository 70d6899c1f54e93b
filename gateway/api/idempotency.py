"""Tells whether two messages of one request id ask for the same."""

import hashlib

from gateway.api.callers import Caller
from specinfer.v1 import generation_pb2


def idempotency_key_of(message: generation_pb2.GenerateRequest, caller: Caller) -> str:
    """The id is not part of it, and what the gateway draws for a request, such as its seed, is not either."""
    content = generation_pb2.GenerateRequest()
    content.CopyFrom(message)
    content.ClearField("request_id")
    return hashlib.sha256(caller.name.encode() + content.SerializeToString(deterministic=True)).hexdigest()
