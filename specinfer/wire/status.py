"""Map errors to gRPC status codes."""

from typing import Any, NoReturn

import grpc

from specinfer.errors import (
    AlreadyExistsError,
    ConstraintError,
    DeniedError,
    ExhaustedError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    SpecInferError,
    UnauthenticatedError,
    UnavailableError,
)

RETRY_HINT_KEY = "grpc-retry-pushback-ms"
"""Metadata key: milliseconds before a retry; negative: do not retry."""

_CODES: dict[type[SpecInferError], grpc.StatusCode] = {
    InvalidInputError: grpc.StatusCode.INVALID_ARGUMENT,
    ConstraintError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    IncompatibleError: grpc.StatusCode.FAILED_PRECONDITION,
    ExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    FencedError: grpc.StatusCode.ABORTED,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    DeniedError: grpc.StatusCode.PERMISSION_DENIED,
}


def status_of(error: SpecInferError) -> grpc.StatusCode:
    """Return the code of the error's class or nearest base class."""
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return grpc.StatusCode.INTERNAL


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: SpecInferError) -> NoReturn:
    """End the call with the error's status, message and retry hint."""
    metadata: tuple[tuple[str, str], ...] = ()
    if isinstance(error, (ExhaustedError, UnavailableError)):
        metadata = ((RETRY_HINT_KEY, str(round(error.retry_after_s * 1000))),)
    await context.abort(status_of(error), str(error), metadata)
