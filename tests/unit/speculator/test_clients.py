"""Request ids of different clients are distinct."""

from itertools import product

from specinfer.wire.client_ids import own_id, request_id_of


def test_ids_are_unambiguous_and_can_be_decoded() -> None:
    words = ["", "a", "1", ":", "1:a", "1:a:", "a:b", "0::", "\0"]
    pairs = list(product(words, words))
    assert len({own_id(client, name) for client, name in pairs}) == len(pairs)
    assert all(request_id_of(own_id(client, name)) == name for client, name in pairs)
