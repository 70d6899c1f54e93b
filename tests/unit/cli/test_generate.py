"""`specinfer generate` cancels its request when a signal ends it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from specinfer.cli import generate
from specinfer.client import AsyncClient, AsyncStream, Piece
from specinfer.client.resume import Item
from specinfer.errors import NotFoundError


class Gateway(AsyncClient):
    """Records the cancelled requests."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.cancelled: list[str] = []

    async def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        raise NotFoundError("it has ended")


async def word() -> AsyncGenerator[Item, None]:
    yield Piece(0, (1,), "word")


@pytest.mark.parametrize("ending", [SystemExit(143), asyncio.CancelledError()])
def test_the_request_is_cancelled_if_a_signal_comes_while_text_is_printed(
    ending: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the gateway, which no longer runs the request, is ignored."""

    def interrupted(text: str) -> None:
        raise ending

    monkeypatch.setattr(generate, "print_text", interrupted)
    gateway = Gateway()
    with pytest.raises(type(ending)):
        asyncio.run(generate._generate(gateway, AsyncStream("r", word()), quiet=False))
    assert gateway.cancelled == ["r"]
