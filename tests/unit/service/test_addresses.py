"""Addresses that servers listen on, and targets of channels."""

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
def test_a_bad_address_is_named(text: str) -> None:
    with pytest.raises(SettingError, match="listen = "):
        split_address("listen", text)


def test_a_server_may_leave_the_port_to_the_system() -> None:
    assert split_address("listen", "127.0.0.1:0", lowest_port=0) == ("127.0.0.1", 0)


@pytest.mark.parametrize("text", ["dns:///a:1", "dns:a:1", "ipv6:[::1]:1", "unix:/tmp/x", "unix:x", "a:1"])
def test_targets_of_channels_are_accepted(text: str) -> None:
    assert check_target("verifiers", text) == text


@pytest.mark.parametrize("text", ["dns:///a", "unix:", "xds:///a:1"])
def test_a_bad_target_is_named(text: str) -> None:
    with pytest.raises(SettingError, match=f"verifiers = '{text}':"):
        check_target("verifiers", text)


def test_targets_are_separated_by_commas() -> None:
    assert split_targets("verifiers", " a:1, dns:///b:2") == ["a:1", "dns:///b:2"]
    for text in ("", " , ", "a:1,"):
        with pytest.raises(SettingError, match=f"verifiers = '{text}':"):
            split_targets("verifiers", text)
