"""Provide the Python client of gateways.

The package imports neither torch nor numpy.
"""

from specinfer.client.async_client import AsyncClient
from specinfer.client.errors import BrokenStreamError, Failure, RequestFailedError, StreamLostError
from specinfer.client.options import SPECULATION, RequestOptions
from specinfer.client.request import Prompt, make_request, new_request_id
from specinfer.client.resume import Patience, Retry
from specinfer.client.sync_client import Client, Stream
from specinfer.errors import InvalidInputError, SpecInferError, UnavailableError
from specinfer.request.answer import (
    Answer,
    Piece,
    SpeculationStats,
    SpeculatorStats,
    Summary,
    TokenLogprob,
    TokenLogprobs,
    acceptance_length,
    add_up,
    stats_to_json,
)
from specinfer.request.statuses import FinishReason
from specinfer.request.stream import AsyncStream
from specinfer.service.tls import ClientTls

__all__ = [
    "SPECULATION",
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "BrokenStreamError",
    "Client",
    "ClientTls",
    "Failure",
    "FinishReason",
    "InvalidInputError",
    "Patience",
    "Piece",
    "Prompt",
    "RequestFailedError",
    "RequestOptions",
    "Retry",
    "SpecInferError",
    "SpeculationStats",
    "SpeculatorStats",
    "Stream",
    "StreamLostError",
    "Summary",
    "TokenLogprob",
    "TokenLogprobs",
    "UnavailableError",
    "acceptance_length",
    "add_up",
    "make_request",
    "new_request_id",
    "stats_to_json",
]
