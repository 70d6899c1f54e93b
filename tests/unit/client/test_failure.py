"""Classification of failures: transient ones, which the client retries, and final ones."""

import grpc
import pytest

from specinfer.client.errors import CURES, Failure

Code = grpc.StatusCode


def test_the_table_has_every_status() -> None:
    assert set(CURES) == set(Code)


@pytest.mark.parametrize(
    ("failure", "transient"),
    [
        (Failure(Code.UNAVAILABLE, "failed to connect"), True),
        (Failure(Code.CANCELLED, ""), True),
        (Failure(Code.ABORTED, "lease lost"), True),
        (Failure(Code.INTERNAL, "Received RST_STREAM with error code 2"), True),
        (Failure(Code.INTERNAL, "RST_STREAM closed stream. HTTP/2 error code: INTERNAL_ERROR"), True),
        (Failure(Code.INTERNAL, "step failed: IndexError"), False),
        (Failure(Code.UNKNOWN, "Stream removed"), True),
        (Failure(Code.UNKNOWN, "Unexpected <class 'KeyError'>: 'a'"), False),
        (Failure(Code.RESOURCE_EXHAUSTED, "queue full", 1.0), True),
        (Failure(Code.RESOURCE_EXHAUSTED, "larger than the cache"), False),
        (Failure(Code.UNAVAILABLE, "the request has ended", hopeless=True), False),
        (Failure(Code.UNAUTHENTICATED, "no key"), False),
        (Failure(Code.INVALID_ARGUMENT, "rst_stream = 1"), False),
        (Failure(Code.ALREADY_EXISTS, "other content"), False),
    ],
)
def test_transient_or_final(failure: Failure, transient: bool) -> None:
    assert failure.transient is transient


@pytest.mark.parametrize(
    ("value", "seconds", "hopeless"),
    [
        ("1500", 1.5, False),
        ("0", 0.0, False),
        ("-1", None, True),
        ("soon", None, True),
        (b"5", None, True),
        (None, None, False),
    ],
)
def test_hints_as_grpc_defines_them(value: str | None, seconds: float | None, hopeless: bool) -> None:
    pairs = () if value is None else (("grpc-retry-pushback-ms", value),)
    error = grpc.aio.AioRpcError(Code.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(*pairs), "away")
    assert Failure.of(error) == Failure(Code.UNAVAILABLE, "away", seconds, hopeless)
