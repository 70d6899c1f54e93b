"""Ids of gateways' requests: of a call that is repeated on purpose, or of one call alone."""

from fastapi import Request

from http_svc.entry.middleware import REQUEST_ID_HEADER
from specinfer.client import new_request_id
from specinfer.errors import InvalidInputError

IDEMPOTENCY_HEADER = "Idempotency-Key"
_LONGEST = 200
"""Characters of a key; the gateway takes 256, of which choices get a few."""


def identity_of(request: Request) -> str:
    """Return the id of the gateway's request.

    A call with `Idempotency-Key` has that id, so that it runs once however often it is sent. `X-Request-Id`
    names a call in logs, but infrastructure sends one for many calls: it is only the beginning of the id.

    Raises:
        InvalidInputError: if the key cannot be an id.
    """
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None:
        if not key or len(key) > _LONGEST or not (key.isascii() and key.isprintable()):
            why = f"must be printable ASCII of 1 to {_LONGEST} characters"
            raise InvalidInputError(IDEMPOTENCY_HEADER, key, why)
        return key
    name: str = request.state.request_id
    return f"{name}.{new_request_id()}" if REQUEST_ID_HEADER in request.headers else name
