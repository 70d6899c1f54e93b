"""The Python client of a gateway, or of several that share a Redis. Loads no model and no torch."""

from specinfer.client.answer import Answer, acceptance_length
from specinfer.client.errors import BrokenStreamError, RequestFailedError, StreamLostError
from specinfer.client.failure import Failure
from specinfer.client.gateway_client import GatewayClient
from specinfer.client.request import SPECULATION, make_request, new_request_id
from specinfer.client.resume import Patience, Piece, Retry

__all__ = [
    "SPECULATION",
    "Answer",
    "BrokenStreamError",
    "Failure",
    "GatewayClient",
    "Patience",
    "Piece",
    "RequestFailedError",
    "Retry",
    "StreamLostError",
    "acceptance_length",
    "make_request",
    "new_request_id",
]
