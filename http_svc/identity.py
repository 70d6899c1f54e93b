"""Read a call's headers: request id and permission for training."""

from collections.abc import Sequence

from fastapi import Request

from http_svc.entry.middleware import REQUEST_ID_HEADER
from specinfer.client import new_request_id
from specinfer.errors import InvalidInputError
from specinfer.v1 import generation_pb2

IDEMPOTENCY_HEADER = "Idempotency-Key"
NO_TRAINING_HEADER = "X-No-Training"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_LONGEST = 200
"""Maximum characters of a key; the gateway's ids have 256, with suffixes."""


def identity_of(request: Request) -> str:
    """Return the gateway's request id for an HTTP call.

    A call with `Idempotency-Key` has this key as its id, so that a repeated call runs once. Otherwise the id begins
    with `X-Request-Id` and has a random end: proxies may send one `X-Request-Id` for several calls.
    """
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None:
        if not key or len(key) > _LONGEST or not (key.isascii() and key.isprintable()):
            reason = f"must be printable ASCII of 1 to {_LONGEST} characters"
            raise InvalidInputError(IDEMPOTENCY_HEADER, key, reason)
        return key
    name: str = request.state.request_id
    return f"{name}.{new_request_id()}" if REQUEST_ID_HEADER in request.headers else name


def with_headers(
    request: Request, asked: Sequence[generation_pb2.GenerateRequest]
) -> Sequence[generation_pb2.GenerateRequest]:
    """Set `no_training` in a call's requests, if the headers do so."""
    for value in request.headers.getlist(NO_TRAINING_HEADER):
        if value.lower() not in _FLAGS:
            raise InvalidInputError(NO_TRAINING_HEADER, value, "must be true or false")
        for call in asked:
            call.no_training = call.no_training or _FLAGS[value.lower()]
    return asked
