"""Services are separated by commas, replicas of one service by bars."""

import pytest

from gateway.clients.addresses import service_addresses
from specinfer.errors import SettingError


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("", []),
        ("a:1, b:2,", ["a:1", "b:2"]),
        ("dns:///name:3,a:1", ["dns:///name:3", "a:1"]),
        ("10.0.0.1:5|10.0.0.2:6", ["ipv4:10.0.0.1:5,10.0.0.2:6"]),
        ("ipv4:10.0.0.1:5 | 10.0.0.2:6,b:2", ["ipv4:10.0.0.1:5,10.0.0.2:6", "b:2"]),
        ("[::1]:5|[::2]:6", ["ipv6:[::1]:5,[::2]:6"]),
    ],
)
def test_what_grpc_is_told(text: str, targets: list[str]) -> None:
    assert service_addresses(text) == targets


@pytest.mark.parametrize(
    "text",
    [
        "host:1|10.0.0.1:2",
        "10.0.0.1|10.0.0.2:2",
        "[::1]:5|10.0.0.1:2",
        "10.0.0.1:2|",
        "ipv6:10.0.0.1:2|10.0.0.1:3",
    ],
)
def test_replicas_are_addresses_of_one_kind(text: str) -> None:
    with pytest.raises(SettingError, match="speculators = "):
        service_addresses(text)
