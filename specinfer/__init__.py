"""SpecInfer: lossless speculative inference with merged token trees (ASPLOS 2024)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specinfer.client import Answer as Answer
    from specinfer.client import AsyncClient as AsyncClient
    from specinfer.client import AsyncStream as AsyncStream
    from specinfer.client import BrokenStreamError as BrokenStreamError
    from specinfer.client import Client as Client
    from specinfer.client import ClientTls as ClientTls
    from specinfer.client import FinishReason as FinishReason
    from specinfer.client import InvalidInputError as InvalidInputError
    from specinfer.client import Patience as Patience
    from specinfer.client import Piece as Piece
    from specinfer.client import Prompt as Prompt
    from specinfer.client import RequestFailedError as RequestFailedError
    from specinfer.client import RequestOptions as RequestOptions
    from specinfer.client import Retry as Retry
    from specinfer.client import SpecInferError as SpecInferError
    from specinfer.client import Stream as Stream
    from specinfer.client import StreamLostError as StreamLostError
    from specinfer.client import UnavailableError as UnavailableError

__version__ = "0.1.0"
_OF_THE_CLIENT = frozenset(
    {
        *("Answer", "AsyncClient", "AsyncStream", "BrokenStreamError", "Client", "ClientTls", "FinishReason"),
        *(
            "InvalidInputError",
            "Patience",
            "Piece",
            "Prompt",
            "RequestFailedError",
            "RequestOptions",
            "Retry",
        ),
        *("SpecInferError", "Stream", "StreamLostError", "UnavailableError"),
    }
)


def __getattr__(name: str) -> Any:
    """The client's names, loaded on first use: every module of ours imports this one, and many must not load
    gRPC."""
    if name not in _OF_THE_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import specinfer.client

    return getattr(specinfer.client, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_THE_CLIENT})
