"""Relayed hidden states: each service gets those that it lacks, once; states that all services have are deleted."""

import numpy as np

from specinfer.scheduling.target_outputs import FeatureRelay, WantedFeatures
from specinfer.v1 import verifier_pb2

HIDDEN = 2
ALL = 2**20


def states(start: int, stop: int, layers: tuple[int, ...]) -> bytes:
    """Return states whose numbers encode position and layer."""
    rows = [[[100 * p + layer] * HIDDEN for layer in layers] for p in range(start, stop)]
    return np.array(rows, np.int16).tobytes()


def relay(*wanted: tuple[int, ...]) -> FeatureRelay:
    made = FeatureRelay(HIDDEN)
    made.want(wanted)
    return made


def test_a_service_gets_every_position_once_and_its_own_layers() -> None:
    it = relay((1, 3), (2,))
    assert it.layers == (1, 2, 3)
    assert it.wanted_from("a", [0, 0]) == 0
    it.arrived("a", 0, 0, states(0, 4, it.layers))
    assert it.take("a", 0, (1, 3), ALL) == (0, states(0, 4, (1, 3)))
    assert it.wanted_from("a", [4, 0]) == 4, (
        "the other one lacks states that are stored here, not at the verifier"
    )
    it.arrived("a", 4, 4, states(4, 6, it.layers))
    assert it.take("a", 4, (1, 3), ALL) == (4, states(4, 6, (1, 3)))
    assert it.take("a", 0, (2,), ALL) == (0, states(0, 6, (2,)))
    assert it.take("a", 6, (2,), ALL) == (6, b"")


def test_states_that_all_services_have_are_deleted() -> None:
    it = relay((1,))
    it.arrived("a", 0, 0, states(0, 4, (1,)))
    it.drop("a", [3, 4])
    assert it.take("a", 0, (1,), ALL) == (3, states(3, 4, (1,)))
    assert it.wanted_from("a", [3, 4]) == 4
    assert it.wanted_from("a", [0, 4]) == 0, "a service that starts over: from the verifier again"


def test_positions_that_the_verifier_lacks_are_not_requested_again() -> None:
    it = relay((1,))
    it.arrived("a", 0, 5, states(5, 7, (1,)))
    assert it.wanted_from("a", [0]) == 7
    assert it.take("a", 0, (1,), ALL) == (5, states(5, 7, (1,)))
    it.forget(["a"])
    assert it.wanted_from("a", [0]) == 0


def test_a_message_has_a_bound_and_the_rest_comes_later() -> None:
    it = relay((1,))
    it.arrived("a", 0, 0, states(0, 9, (1,)))
    start, data = it.take("a", 0, (1,), 4 * it.bytes_of((1,)) + 3)
    assert (start, data) == (0, states(0, 4, (1,)))
    assert it.until(start, data, (1,)) == 4
    assert it.take("a", 4, (1,), ALL) == (4, states(4, 9, (1,)))


def test_no_states_are_requested_without_readers_or_if_too_many_wait() -> None:
    assert relay().wanted_from("a", []) is None
    it = relay((1,))
    it.arrived("a", 0, 0, bytes(2**24 + 4))
    assert it.wanted_from("a", [0]) is None
    it.drop("a", [2**22])
    assert it.wanted_from("a", [2**22]) == 2**22 + 1, "as soon as it took some"


def test_other_layers_start_again() -> None:
    it = relay((1,))
    it.arrived("a", 0, 0, states(0, 4, (1,)))
    it.want([(1,), (2,)])
    assert it.wanted_from("a", [4, 0]) == 0


def test_features_that_do_not_match_the_request_are_named() -> None:
    wanted = WantedFeatures((1, 2), {"a": 3}, 8)
    fits = verifier_pb2.Verdict(features=bytes(16), features_start=3, cached_len=5)
    assert wanted.contradiction("a", fits) == ""
    assert wanted.contradiction("a", verifier_pb2.Verdict()) == ""
    bad = [
        ("b", fits),
        ("a", verifier_pb2.Verdict(features=bytes(15), features_start=3, cached_len=5)),
        ("a", verifier_pb2.Verdict(features=bytes(16), features_start=2, cached_len=5)),
        ("a", verifier_pb2.Verdict(features=bytes(16), features_start=4, cached_len=5)),
    ]
    assert all("the verifier returned" in wanted.contradiction(name, answer) for name, answer in bad)
