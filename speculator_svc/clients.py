"""Separate ids of clients: two gateways may use the same request id."""


def own_id(client: str, request_id: str) -> str:
    """Return the engine's and drafters' id of a client's request.

    The length at the start keeps it unique for any characters in both.
    """
    return f"{len(client)}:{client}:{request_id}"


def request_id_of(own_id: str) -> str:
    """Return the client's own id of a request."""
    length, _, rest = own_id.partition(":")
    return rest[int(length) + 1 :]
