"""Clients told apart: two gateways may call different requests by the same id. Pure."""


def own_id(client: str, request_id: str) -> str:
    """A client's request as the engine and the drafters call it.

    The length in front keeps it unambiguous whatever characters both have.
    """
    return f"{len(client)}:{client}:{request_id}"


def request_id_of(own: str) -> str:
    """What the client calls it."""
    length, _, rest = own.partition(":")
    return rest[int(length) + 1 :]
