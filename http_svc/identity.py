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
"""Maximum characters of an id: 256 less a choice's suffix."""


def identity_of(request: Request) -> str:
    """Return the id of the gateway's request.

    A call with `Idempotency-Key` has this key as its id, so that a repeated call runs once. Otherwise the id begins
    with `X-Request-Id` and has a random end: proxies may send one `X-Request-Id` for several calls.

    Raises:
        InvalidInputError: if the `Idempotency-Key` cannot be an id.
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
    """Return a call's requests, with `no_training` set by the headers.

    Raises:
        InvalidInputError: if the header is neither true nor false.
    """
    for value in request.headers.getlist(NO_TRAINING_HEADER):
        if value.lower() not in _FLAGS:
            raise InvalidInputError(NO_TRAINING_HEADER, value, "must be true or false")
        for call in asked:
            call.no_training = call.no_training or _FLAGS[value.lower()]
    return asked
