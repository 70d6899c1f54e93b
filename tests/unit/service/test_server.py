"""What a service's server refuses before it serves."""

import asyncio

import pytest

from specinfer.cli.processes import free_ports
from specinfer.errors import SettingError
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings


async def test_an_address_that_another_server_has_is_refused() -> None:
    """Shared, it would give every second connection to the wrong service, without a word."""
    settings = ServiceSettings(listen=f"127.0.0.1:{free_ports(1)[0]}")
    first, second = ServiceServer(settings, ["first"]), ServiceServer(settings, ["second"])
    await first.start()
    try:
        with pytest.raises(SettingError, match=rf"listen = '{settings.listen}'.*cannot bind"):
            await second.start()
    finally:
        await asyncio.gather(first.stop(), second.stop())


def test_ports_are_different() -> None:
    assert len(set(free_ports(64))) == 64
