"""Check in Redis that each token which a client received was stored before."""

from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.store.keys import TOKEN_WIDTH, tokens_key
from tests.chaos.client import ChangedError


class Audit:
    """Reads requests from Redis directly, without gateways and proxies."""

    def __init__(self, port: Callable[[], int]) -> None:
        """`port` returns the port of the primary."""
        self._port, self._servers = port, dict[int, Redis]()
        self.looks = 0
        """Number of checks that Redis answered."""

    async def look(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        """Compare received tokens with the stored ones; do nothing while Redis is down, as later checks follow.

        Raises:
            ChangedError: if stored tokens are missing or differ, or exceed those of an ended request.
        """
        port = self._port()
        try:
            text = str(await self._server(port).get(tokens_key(request_id)) or "")
        except (RedisError, OSError):
            return
        if port != self._port():
            return  # a replica by now, which may lag behind
        self.looks += 1
        stored = [int(text[at : at + TOKEN_WIDTH]) for at in range(0, len(text), TOKEN_WIDTH)]
        if stored[: len(tokens)] != list(tokens) or (ended and len(stored) > len(tokens)):
            message = f"{request_id}: {len(tokens)} tokens were given, Redis has {len(stored)}"
            raise ChangedError("lost" if len(stored) < len(tokens) else "changed", 1, message)

    async def close(self) -> None:
        """Close the connection."""
        for server in self._servers.values():
            await server.aclose()

    def _server(self, port: int) -> Redis:
        if port not in self._servers:
            options: dict[str, Any] = {"decode_responses": True, "socket_timeout": 0.5}
            self._servers[port] = Redis(host="127.0.0.1", port=port, **options)
        return self._servers[port]
