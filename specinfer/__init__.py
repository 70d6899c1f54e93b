"""SpecInfer: lossless speculative inference with merged token trees (ASPLOS 2024)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specinfer.client import AsyncClient as AsyncClient
    from specinfer.client import Client as Client

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Client` and `AsyncClient`, loaded on first use: every module of ours imports this one, and many must
    not load gRPC."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import specinfer.client

    return getattr(specinfer.client, name)
