"""Separation of clients: two gateways may use the same id for different requests. Pure."""


def own_id(client: str, request_id: str) -> str:
    """Return the id by which the engine and the drafters know a client's request.

    The length in front keeps it unambiguous whatever characters both have.
    """
    return f"{len(client)}:{client}:{request_id}"


def request_id_of(own: str) -> str:
    """Return the client's own id of a request."""
    length, _, rest = own.partition(":")
    return rest[int(length) + 1 :]
