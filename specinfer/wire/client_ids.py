"""Make request ids unique among clients: gateways may use the same ids."""


def own_id(client: str, request_id: str) -> str:
    """Return the engine's id of a client's request.

    The id begins with the length of `client`, so that different (client, request_id) never give the same id.
    """
    return f"{len(client)}:{client}:{request_id}"


def request_id_of(own_id: str) -> str:
    """Return the client's own id of a request."""
    length, _, rest = own_id.partition(":")
    return rest[int(length) + 1 :]
