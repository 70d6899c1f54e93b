"""Check a call's key at a gateway, before its body is read."""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers

from http_svc.errors import api_error
from http_svc.models import Models
from specinfer.client import AsyncClient
from specinfer.errors import SpecInferError

_FRESH_S = 5.0
"""Seconds for which an accepted key is cached; gateways check each call."""
_REMEMBERED = 4096
"""Maximum accepted keys in the cache, as SHA-256."""


class CallerKeys:
    """Checks callers' keys at gateways, and caches accepted keys."""

    def __init__(
        self, client: AsyncClient, models: Models, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the cache; each gateway's reply is passed to `models`."""
        self._client, self._models, self._clock = client, models, clock
        self._accepted: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        """By a key's SHA-256, the time until which it is accepted, and its name."""

    def client_of(self, headers: Headers) -> AsyncClient:
        """Return a client with the caller's key and trace context."""
        return self._client.for_caller(key_in(headers), headers.get("traceparent", ""))

    async def admit(self, headers: Headers) -> str:
        """Check that a gateway accepts the call's key, or needs no key; return the key's name."""
        digest = hashlib.sha256((key_in(headers) or "").encode()).digest()
        until, name = self._accepted.get(digest, (-math.inf, ""))
        if self._clock() < until:
            return name
        try:
            status = await self.client_of(headers).status()
        except SpecInferError as error:
            raise api_error(error, {}) from error
        self._models.remember(status)
        self._accepted[digest] = (self._clock() + _FRESH_S, status.caller)
        self._accepted.move_to_end(digest)
        while len(self._accepted) > _REMEMBERED:
            self._accepted.popitem(last=False)
        return status.caller


def key_in(headers: Headers) -> str | None:
    """Return the key of `Authorization: Bearer KEY`, else of `x-api-key`, or None.

    Gateways with keys refuse a call without one.
    """
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    key = (rest if scheme.lower() == "bearer" else headers.get("x-api-key", "")).strip()
    return key if key and key.isascii() and key.isprintable() else None
