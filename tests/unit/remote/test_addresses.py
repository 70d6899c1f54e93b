"""Lists of services separated by commas, with replicas separated by bars; division of requests among replicas."""

import pytest

from specinfer.errors import SettingError
from specinfer.remote.replicas import ReplicaShares
from specinfer.service.channel import replica_addresses, service_addresses


@pytest.mark.parametrize(
    ("text", "services"),
    [
        ("", []),
        ("a:1, b:2,", [["a:1"], ["b:2"]]),
        ("dns:///name:3,a:1", [["dns:///name:3"], ["a:1"]]),
        ("10.0.0.1:5 | host:6, b:2", [["10.0.0.1:5", "host:6"], ["b:2"]]),
        ("[::1]:5|[::2]:6", [["[::1]:5", "[::2]:6"]]),
    ],
)
def test_services_and_their_replicas(text: str, services: list[list[str]]) -> None:
    assert [replica_addresses(service) for service in service_addresses(text)] == services


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "a:0", "10.0.0.1|10.0.0.2:2", "10.0.0.1:2|", "a:1|dns:///b:2", "a:1|b:2|a:1"]
)
def test_replicas_are_different_hosts_and_ports(text: str) -> None:
    with pytest.raises(SettingError, match="speculators = "):
        service_addresses(text)


def test_requests_stay_where_they_are_and_move_when_a_replica_dies() -> None:
    shares = ReplicaShares()
    assert shares.divide("abcd", ["x", "y"]) == {"a": "x", "b": "y", "c": "x", "d": "y"}
    assert shares.divide("dcba", ["y", "x"]) == {"a": "x", "b": "y", "c": "x", "d": "y"}
    shares.forget("bd")
    assert shares.divide("e", ["x", "y"]) == {"e": "y"}, "the replica with the fewest"
    assert shares.divide("ace", ["y"]) == {"a": "y", "c": "y", "e": "y"}
    assert shares.divide("ace", []) == {}
    assert shares.divide("acef", ["x", "y"]) == {"a": "y", "c": "y", "e": "y", "f": "x"}
