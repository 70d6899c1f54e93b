"""The gateway, but what steps bring is not written to Redis: what that saves is the store's share."""

from gateway.requests.store import RequestStore

from gateway.__main__ import main


async def _written(*_: object, **__: object) -> None:
    """As if everything were durable already."""


if __name__ == "__main__":
    RequestStore.append = _written  # type: ignore[method-assign]
    main()
