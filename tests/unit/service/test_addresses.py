"""Addresses, of servers that listen and of channels to services."""

import pytest

from specinfer.errors import SettingError
from specinfer.service.channel import check_target, split_address, split_targets


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.example:1", ("a.example", 1)),
        ("[::1]:50051", ("::1", 50051)),
        ("127.0.0.1:65535", ("127.0.0.1", 65535)),
    ],
)
def test_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert split_address("listen", text) == parts


@pytest.mark.parametrize(
    "text", ["", "a", ":1", "a:", "a:x", "a:-1", "a:0", "a:65536", "a:1٣", "::1:50051", "[]:1"]
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(SettingError, match=r"listen = .*: must be host:port with a port from 1 to 65535"):
        split_address("listen", text)


def test_a_server_may_leave_the_port_to_the_system() -> None:
    assert split_address("listen", "127.0.0.1:0", lowest_port=0) == ("127.0.0.1", 0)


@pytest.mark.parametrize("text", ["dns:///a:1", "dns:a:1", "ipv6:[::1]:1", "unix:/tmp/x", "unix:x", "a:1"])
def test_what_a_channel_can_be_opened_to(text: str) -> None:
    assert check_target("verifiers", text) == text


@pytest.mark.parametrize("text", ["dns:///a", "unix:", "xds:///a:1"])
def test_what_no_channel_can_be_opened_to_is_named_whole(text: str) -> None:
    with pytest.raises(SettingError, match=f"verifiers = '{text}': must be host:port"):
        check_target("verifiers", text)


def test_several_have_commas_between_them() -> None:
    assert split_targets("verifiers", " a:1, dns:///b:2") == ["a:1", "dns:///b:2"]
    for text in ("", " , ", "a:1,"):
        with pytest.raises(SettingError, match=f"verifiers = '{text}': must be host:port, or several"):
            split_targets("verifiers", text)
