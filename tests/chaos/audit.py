"""Looks into Redis for what a client was just given: a token is stored before anybody sees it."""

from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.store.keys import TOKEN_WIDTH, tokens_key
from tests.chaos.client import ChangedError


class Audit:
    """Asks Redis itself, past all gateways and proxies."""

    def __init__(self, port: int) -> None:
        self._redis = Redis(host="127.0.0.1", port=port, decode_responses=True, socket_timeout=0.5)
        self.looks = 0
        """Those that Redis answered."""

    async def look(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        """Compares; does nothing while Redis is down, since it is asked again later.

        Raises:
            ChangedError: if tokens are missing there, or others, or more though the request has ended.
        """
        try:
            text = str(await self._redis.get(tokens_key(request_id)) or "")
        except (RedisError, OSError):
            return
        self.looks += 1
        stored = [int(text[at : at + TOKEN_WIDTH]) for at in range(0, len(text), TOKEN_WIDTH)]
        if stored[: len(tokens)] != list(tokens) or (ended and len(stored) > len(tokens)):
            message = f"{request_id}: {len(tokens)} tokens were given, Redis has {len(stored)}"
            raise ChangedError("lost" if len(stored) < len(tokens) else "changed", 1, message)

    async def close(self) -> None:
        """Closes the connection."""
        await self._redis.aclose()
