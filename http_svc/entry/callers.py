"""Check a call's key at a gateway, before its body is read."""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers

from http_svc.errors import ApiError, api_error
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
        self._accepted: OrderedDict[bytes, float] = OrderedDict()

    def client_of(self, headers: Headers) -> AsyncClient:
        """Return a client with the caller's key and trace context.

        Raises:
            ApiError: 401 if the `Authorization` header is not `Bearer KEY`.
        """
        return self._client.for_caller(_key_in(headers), headers.get("traceparent", ""))

    async def admit(self, headers: Headers) -> None:
        """Check that a gateway accepts the call's key, or needs no key.

        Raises:
            ApiError: 401 if the gateway refuses the key; 503 if no gateway answers.
        """
        digest = hashlib.sha256((_key_in(headers) or "").encode()).digest()
        if self._clock() < self._accepted.get(digest, -math.inf):
            return
        try:
            self._models.remember(await self.client_of(headers).status())
        except SpecInferError as error:
            raise api_error(error, {}) from error
        self._accepted[digest] = self._clock() + _FRESH_S
        self._accepted.move_to_end(digest)
        while len(self._accepted) > _REMEMBERED:
            self._accepted.popitem(last=False)


def _key_in(headers: Headers) -> str | None:
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, rest = given.partition(" ")
    key = rest.strip()
    if scheme.lower() != "bearer" or not key or not key.isascii() or not key.isprintable():
        raise ApiError(401, "Authorization: must be `Bearer KEY`", "invalid_api_key", "Authorization")
    return key
