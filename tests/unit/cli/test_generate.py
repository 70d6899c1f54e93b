"""`generate` ends when a signal comes, wherever it is just then."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from specinfer.cli import generate
from specinfer.client import AsyncClient, AsyncStream, Piece
from specinfer.client.resume import Item
from specinfer.errors import NotFoundError


class Gateway(AsyncClient):
    """Records what is cancelled."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.cancelled: list[str] = []

    async def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        raise NotFoundError("it has ended")


async def word() -> AsyncGenerator[Item, None]:
    yield Piece(0, (1,), "word")


@pytest.mark.parametrize("ending", [SystemExit(143), asyncio.CancelledError()])
def test_the_request_is_cancelled_where_a_signal_comes_while_a_word_is_printed(
    ending: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes nothing that the gateway no longer runs the request."""

    def interrupted(text: str) -> None:
        raise ending

    monkeypatch.setattr(generate, "print_text", interrupted)
    gateway = Gateway()
    with pytest.raises(type(ending)):
        asyncio.run(generate._generate(gateway, AsyncStream("r", word()), quiet=False))
    assert gateway.cancelled == ["r"]
